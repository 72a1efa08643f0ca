/* SPDX-License-Identifier: Apache-2.0 */
/* What a token file is, and its text. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "data/tokens/tokens.h"
#include "text/tokenizer/tokenizer.h"
#include "tokenize.h"

enum { PIECE = 1 << 14 };

static int count_learned(uint64_t *out, const struct tokens *t, struct fsdp_err *err)
{
    const uint64_t n = tokens_info(t)->ntokens;
    static bool learned[PIECE];

    *out = 0;
    for (uint64_t at = 0; at < n; at += PIECE) {
        const size_t here = n - at < PIECE ? (size_t)(n - at) : PIECE;
        FSDP_TRY(tokens_learned(t, at, here, learned, err));
        for (size_t i = 0; i < here; i++)
            *out += learned[i];
    }
    return FSDP_OK;
}

int tokenize_count_learned(uint64_t *out, const char *path, struct fsdp_err *err)
{
    struct tokens *t = NULL;

    FSDP_TRY(tokens_open(&t, path, err));
    const int rc = count_learned(out, t, err);
    tokens_close(t);
    return rc;
}

/* A file of another program has no index. */
static int open_made(struct tokens **out, const char *path, struct fsdp_err *err)
{
    const int rc = tokens_open(out, path, err);

    if (rc != FSDP_ENOTFOUND)
        return rc;
    return fsdp_err_hint(err, rc,
                         "; a token file is read here as fsdp-tokenize made it, next to "
                         "its .index");
}

static int check_output(struct fsdp_err *err)
{
    return fflush(stdout) || ferror(stdout) ? fsdp_err_sys(err, errno, "standard output") : FSDP_OK;
}

/* ---- what it is ------------------------------------------------------------------------------ */

static uint64_t longest_document(const struct tokens *t)
{
    uint64_t longest = 0;

    for (uint64_t i = 0; i < tokens_info(t)->ndocuments; i++) {
        const uint64_t n = tokens_begin(t, i + 1) - tokens_begin(t, i);
        longest = n > longest ? n : longest;
    }
    return longest;
}

static void print_share(const char *name, uint64_t part, uint64_t all)
{
    printf("%-18s %" PRIu64 " (%.1f%%)\n", name, part, all ? 100 * (double)part / (double)all : 0);
}

static int print_info(const struct tokens *t, bool verified, struct fsdp_err *err)
{
    static const char *const specials[] = {"none", "model", "eos"};
    const struct tokens_info *info = tokens_info(t);
    uint64_t nlearned;

    printf("%-18s %" PRIu64 " of %d bits\n", "tokens", info->ntokens, 8 * info->token_nbytes);
    printf("%-18s %" PRIu64 "\n", "documents", info->ndocuments);
    printf("%-18s %" PRIu64 " tokens\n", "longest document", longest_document(t));
    printf("%-18s %" PRIu64 "\n", "bytes of text", info->nbytes);
    if (info->ntokens)
        printf("%-18s %.3f\n", "bytes per token", (double)info->nbytes / (double)info->ntokens);
    if (info->has_learned) {
        FSDP_TRY(count_learned(&nlearned, t, err));
        print_share("learned tokens", nlearned, info->ntokens);
    }
    printf("%-18s %" PRIu64 "\n", "lines left out", info->nbad);
    printf("%-18s %d tokens\n", "vocabulary", info->vocab_size);
    if (info->tokenizer_hash)
        printf("%-18s %016" PRIx64 "\n", "tokenizer", info->tokenizer_hash);
    else
        printf("%-18s bytes\n", "tokenizer");
    printf("%-18s %s\n", "special", specials[info->special]);
    printf("%-18s %016" PRIx64 "\n", "sources", info->source_hash);
    printf("%-18s %s\n", "checksums", verified ? "right" : "of the index right (--verify: of all)");
    return check_output(err);
}

int tokenize_show_info(const struct tokenize_settings *set, struct fsdp_err *err)
{
    struct tokens *t = NULL;

    FSDP_TRY(open_made(&t, set->info, err));
    int rc = set->verify ? tokens_verify(t, err) : FSDP_OK;
    if (rc == FSDP_OK)
        rc = print_info(t, set->verify, err);
    tokens_close(t);
    return rc;
}

/* ---- its text -------------------------------------------------------------------------------- */

static int open_decoder(struct tokenizer **out, const struct tokens_info *info,
                        const struct tokenize_settings *set, struct fsdp_err *err)
{
    const char *path = set->tokenizer ? set->tokenizer : "bytes";

    if (!set->tokenizer && info->tokenizer_hash)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "'%s' was made with a tokenizer: give it with --tokenizer",
                            set->decode);
    FSDP_TRY(strcmp(path, "bytes") != 0 ? tokenizer_open(out, path, err)
                                        : tokenizer_open_bytes(out, err));
    const bool is_bytes = tokenizer_is_bytes(*out) && tokenizer_vocab_size(*out) == 256;
    const uint64_t hash = is_bytes ? 0 : tokenizer_hash(*out);
    if (hash == info->tokenizer_hash)
        return FSDP_OK;
    tokenizer_close(*out);
    return fsdp_err_set(err, FSDP_EINVAL,
                        "'%s' was made with another tokenizer than '%s': its hash is %016" PRIx64
                        ", not %016" PRIx64,
                        set->decode, path, info->tokenizer_hash, hash);
}

static int choose_range(struct tokenize_range *out, const struct tokens *t,
                        const struct tokenize_settings *set, struct fsdp_err *err)
{
    const struct tokens_info *info = tokens_info(t);

    *out = (struct tokenize_range){.end = info->ntokens};
    if (set->document.is_given) {
        if (set->document.first >= info->ndocuments)
            return fsdp_err_set(err, FSDP_EINVAL,
                                "'%s' has documents 0 to %" PRIu64 ", not %" PRIu64, set->decode,
                                info->ndocuments - 1, set->document.first);
        out->first = tokens_begin(t, set->document.first);
        out->end = tokens_begin(t, set->document.first + 1);
    }
    if (set->tokens.is_given) {
        if (set->tokens.end > info->ntokens)
            return fsdp_err_set(err, FSDP_EINVAL, "'%s' has %" PRIu64 " tokens, not %" PRIu64,
                                set->decode, info->ntokens, set->tokens.end);
        *out = set->tokens;
    }
    return FSDP_OK;
}

static int read_ids(int fd, int32_t *ids, size_t n, uint64_t first, int token_nbytes,
                    const char *path, struct fsdp_err *err)
{
    static unsigned char bytes[4 * PIECE];
    const size_t nbytes = n * (size_t)token_nbytes, at = first * (uint64_t)token_nbytes;

    for (size_t have = 0; have < nbytes;) {
        const ssize_t got = pread(fd, bytes + have, nbytes - have, (off_t)(at + have));
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return fsdp_err_sys(err, got ? errno : EIO, "cannot read '%s'", path);
        have += (size_t)got;
    }
    for (size_t i = 0; i < n; i++) {
        const unsigned char *b = bytes + i * (size_t)token_nbytes;
        uint32_t id = b[0] | (uint32_t)b[1] << 8;
        if (token_nbytes == 4)
            id |= (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
        ids[i] = (int32_t)id;
    }
    return FSDP_OK;
}

static int print_ids(struct tokenizer_stream *stream, const int32_t *ids, size_t n,
                     struct fsdp_err *err)
{
    for (size_t i = 0; i < n; i++) {
        const char *text;
        size_t nbytes;
        FSDP_TRY(tokenizer_stream_put(stream, ids[i], &text, &nbytes, err));
        fwrite(text, 1, nbytes, stdout);
    }
    return ferror(stdout) ? check_output(err) : FSDP_OK;
}

/* Tokens [first, end) of one document, or of a part of one. */
static int print_tokens(int fd, struct tokenizer_stream *stream, const struct tokens *t,
                        uint64_t first, uint64_t end, const char *path, struct fsdp_err *err)
{
    static int32_t ids[PIECE];
    const char *text;
    size_t nbytes;

    for (; first < end;) {
        const size_t n = end - first < PIECE ? (size_t)(end - first) : PIECE;
        FSDP_TRY(read_ids(fd, ids, n, first, tokens_info(t)->token_nbytes, path, err));
        FSDP_TRY(print_ids(stream, ids, n, err));
        first += n;
    }
    FSDP_TRY(tokenizer_stream_end(stream, &text, &nbytes, err));
    fwrite(text, 1, nbytes, stdout);
    return FSDP_OK;
}

static int print_text(const struct tokens *t, const struct tokenizer *tokenizer,
                      const struct tokenize_settings *set, struct fsdp_err *err)
{
    struct tokenizer_stream *stream = NULL;
    struct tokenize_range range;
    int fd = -1;

    FSDP_TRY(choose_range(&range, t, set, err));
    int rc = fsdp_file_open(&fd, set->decode, O_RDONLY, err);
    if (rc == FSDP_OK)
        rc = tokenizer_stream_create(&stream, tokenizer, false, err);
    for (uint64_t at = range.first; rc == FSDP_OK && at < range.end;) {
        const uint64_t document_end = tokens_begin(t, tokens_find(t, at) + 1);
        const uint64_t end = document_end < range.end ? document_end : range.end;
        rc = print_tokens(fd, stream, t, at, end, set->decode, err);
        at = end;
    }
    tokenizer_stream_destroy(stream);
    if (fd >= 0)
        close(fd);
    if (isatty(STDOUT_FILENO)) /* a file gets the text alone, to the byte */
        putchar('\n');
    return rc ? rc : check_output(err);
}

int tokenize_show_text(const struct tokenize_settings *set, struct fsdp_err *err)
{
    struct tokenizer *tokenizer = NULL;
    struct tokens *t = NULL;

    FSDP_TRY(open_made(&t, set->decode, err));
    int rc = open_decoder(&tokenizer, tokens_info(t), set, err);
    if (rc == FSDP_OK) {
        rc = print_text(t, tokenizer, set, err);
        tokenizer_close(tokenizer);
    }
    tokens_close(t);
    return rc;
}
