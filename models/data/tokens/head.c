/* SPDX-License-Identifier: Apache-2.0 */
/* What the bytes of a token file depend on, as lines: two commands with the same make the same. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "journal.h"

/* A path on a line. */
static void put_path(FILE *f, const char *path)
{
    for (; *path; path++)
        if ((unsigned char)*path < ' ' || *path == '%')
            fprintf(f, "%%%02x", (unsigned char)*path);
        else
            fputc(*path, f);
    fputc('\n', f);
}

static void put_source(FILE *f, const struct encode_source *s)
{
    fprintf(f, "source %s ", s->is_lines ? "jsonl" : "text");
    if (s->has_size)
        fprintf(f, "%" PRIu64 " bytes of %" PRId64 ".%09" PRId64 " ", s->nbytes, s->seconds,
                s->nanoseconds);
    put_path(f, s->path);
}

int encode_head(char **out, const struct encode_sources *sources, const struct data_text *text,
                const struct tokens_info *info, struct fsdp_err *err)
{
    static const char *const specials[] = {"none", "model", "eos"};
    static const char *const trains[] = {"assistant", "last", "all"};
    size_t nbytes;
    char *lines = NULL;
    FILE *f = open_memstream(&lines, &nbytes);

    if (!f)
        return fsdp_err_set(err, FSDP_ENOMEM, "out of memory for a list of files");
    fprintf(f, "token-bytes %d\nvocabulary %d\n", info->token_nbytes, info->vocab_size);
    fprintf(f, "tokenizer %016" PRIx64 "\n", info->tokenizer_hash);
    fprintf(f, "special %s\nend-token %d\n", specials[text->special], text->end);
    fprintf(f, "text-key ");
    put_path(f, sources->opts->text_key ? sources->opts->text_key : "text");
    fprintf(f, "train-on %s\n", trains[text->train_on]);
    fprintf(f, "template %016" PRIx64 "\n", text->chat ? text->chat_hash : 0);
    fprintf(f, "date ");
    put_path(f, text->date ? text->date : "today");
    for (size_t i = 0; i < sources->nsources; i++)
        put_source(f, &sources->at[i]);
    const bool failed = ferror(f);
    if (fclose(f) || failed) {
        free(lines);
        return fsdp_err_set(err, FSDP_ENOMEM, "out of memory for a list of files");
    }
    *out = lines;
    return FSDP_OK;
}
