/* SPDX-License-Identifier: Apache-2.0 */
/* Text and JSON Lines as token files, and what is read of these. Bytes are tokens. */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/tokens/encode.h"
#include "data/tokens/tokens.h"
#include "tap.h"

static const struct data_text bytes = {.end = 0, .special = DATA_SPECIAL_EOS};

static void write_file(const char *path, const char *text, size_t nbytes)
{
    FILE *f = fopen(path, "w");
    if (!f || fwrite(text, 1, nbytes, f) != nbytes || fclose(f))
        exit(99);
}

static int encode(struct tokens_info *info, const char *out, int npaths, const char *const *paths,
                  bool skip, struct fsdp_err *err)
{
    const struct encode_opts opts = {.version = ENCODE_OPTS_VERSION,
                                     .npaths = npaths,
                                     .paths = paths,
                                     .text = &bytes,
                                     .skip_bad_lines = skip};
    return encode_run(info, out, &opts, err);
}

static bool same_tokens(const char *path, const char *want, size_t nbytes)
{
    uint16_t got[1000];
    FILE *f = fopen(path, "r");
    const size_t n = f ? fread(got, 2, 1000, f) : 0;
    bool same = n == nbytes;

    for (size_t i = 0; same && i < n; i++)
        same = got[i] == (unsigned char)want[i];
    if (f)
        fclose(f);
    return same;
}

static void test_kinds(void)
{
    static const char lines[] = "{\"text\":\"ab\"}\n\n"
                                "{\"prompt\":\"xy\",\"completion\":\"z\"}\r\n"
                                "{\"input_ids\":[1,2],\"labels\":[-100,2]}";
    static const char want[] = "one\0\0ab\0xyz\0\1\2";
    const char *const paths[] = {"a.txt", "empty.txt", "b.jsonl"};
    const bool want_learned[] = {1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 1, 1, 0, 1};
    struct fsdp_err err = FSDP_ERR_INIT;
    struct tokens_info info = {0};
    struct tokens *t = NULL;
    bool learned[14], exist = true;

    write_file("a.txt", "one", 3);
    write_file("empty.txt", "", 0);
    write_file("b.jsonl", lines, sizeof lines - 1);
    ok(!tokens_exist(&exist, "kinds.u16", &err) && !exist, "no token file yet");
    if (!ok(!encode(&info, "kinds.u16", 3, paths, false, &err), "texts and lines become tokens"))
        diag("%s", err.text);
    ok(same_tokens("kinds.u16", want, sizeof want - 1), "the ids");
    ok(access("kinds.u16.part", F_OK) && access("kinds.u16.index.part", F_OK), "no .part is left");
    ok(!tokens_exist(&exist, "kinds.u16", &err) && exist, "it is there");
    if (!ok(!tokens_open(&t, "kinds.u16", &err), "opened")) {
        diag("%s", err.text);
        return;
    }
    ok(!memcmp(&info, tokens_info(t), sizeof info), "described as it was made");
    ok(info.ndocuments == 5 && info.ntokens == 14 && info.nbytes == 8 && info.nbad == 0 &&
           info.vocab_size == 256 && info.token_nbytes == 2 && info.has_learned &&
           info.special == DATA_SPECIAL_EOS,
       "%" PRIu64 " documents, %" PRIu64 " tokens, %" PRIu64 " bytes", info.ndocuments,
       info.ntokens, info.nbytes);
    const uint64_t begins[] = {0, 4, 5, 8, 12, 14};
    bool same = true;
    for (uint64_t i = 0; i < 6; i++)
        same &= tokens_begin(t, i) == begins[i];
    for (uint64_t i = 0; i < 14; i++)
        same &=
            tokens_begin(t, tokens_find(t, i)) <= i && tokens_begin(t, tokens_find(t, i) + 1) > i;
    ok(same, "where documents begin, and which one a token is in");
    ok(!tokens_learned(t, 0, 14, learned, &err) && !memcmp(learned, want_learned, 14) &&
           !tokens_learned(t, 9, 5, learned, &err) && !memcmp(learned, want_learned + 9, 5),
       "which are learned");
    ok(!tokens_verify(t, &err), "checksums");
    tokens_close(t);
}

static void test_source_hash(void)
{
    const char *const paths[] = {"a.txt", "empty.txt", "b.jsonl"}, *const swapped[] = {"empty.txt",
                                                                                       "a.txt",
                                                                                       "b.jsonl"};
    struct encode_opts opts = ENCODE_OPTS_INIT;
    struct tokens *t = NULL;
    uint64_t hash = 0, other = 0;

    opts.npaths = 3;
    opts.paths = paths;
    opts.text = &bytes;
    if (!ok(!tokens_open(&t, "kinds.u16", NULL), "opened"))
        return;
    ok(!encode_source_hash(&hash, &opts, NULL) && hash == tokens_info(t)->source_hash,
       "the hash of the sources is that of the token file");
    opts.paths = swapped;
    ok(!encode_source_hash(&other, &opts, NULL) && hash != other,
       "and another one where files end elsewhere");
    tokens_close(t);
}

static void test_bad_lines(void)
{
    static const char lines[] = "{\"text\":\"a\"}\n{\"content\":\"b\"}\nno\n{\"text\":\"c\"}\n";
    const char *const paths[] = {"bad.jsonl"};
    struct fsdp_err err = FSDP_ERR_INIT;
    struct tokens_info info;

    write_file("bad.jsonl", lines, sizeof lines - 1);
    ok(encode(&info, "bad.u16", 1, paths, false, &err) == FSDP_EINVAL &&
           strstr(err.text, "bad.jsonl:2:1: needs text"),
       "a line that is no document is named: %s", err.text);
    ok(access("bad.u16", F_OK) && access("bad.u16.index", F_OK), "nothing is there then");
    ok(!encode(&info, "skipped.u16", 1, paths, true, &err) && info.nbad == 2 &&
           info.ndocuments == 2 && !info.has_learned && same_tokens("skipped.u16", "a\0c", 4),
       "or lines are left out, and counted");
}

/* Each byte of the index, the last of the others, and files that are too short, or longer. */
static void test_damage(void)
{
    static const char *const names[] = {"kinds.u16.index", "kinds.u16", "kinds.u16.learned"};
    int unseen = 0, unnamed = 0;

    for (int i = 0; i < 3; i++) {
        struct stat st;
        const int fd = open(names[i], O_RDWR);
        if (fd < 0 || fstat(fd, &st))
            exit(99);
        for (off_t at = 0; at <= st.st_size; at++) {
            struct fsdp_err err = FSDP_ERR_INIT;
            struct tokens *t = NULL;
            char byte = 0, other;
            pread(fd, &byte, 1, at);
            other = (char)(byte ^ 0x10);
            if (pwrite(fd, &other, 1, at) != 1)
                exit(99);
            int rc = tokens_open(&t, "kinds.u16", &err);
            if (!rc)
                rc = tokens_verify(t, &err);
            unseen += rc != FSDP_ECORRUPT && rc != FSDP_EUNSUPPORTED;
            unnamed += !strstr(err.text, names[i]);
            tokens_close(t);
            if (pwrite(fd, &byte, 1, at) != 1 || ftruncate(fd, st.st_size))
                exit(99);
        }
        struct tokens *t = NULL;
        struct fsdp_err err = FSDP_ERR_INIT;
        char last;
        if (pread(fd, &last, 1, st.st_size - 1) != 1 || ftruncate(fd, st.st_size - 1))
            exit(99);
        ok(tokens_open(&t, "kinds.u16", &err) == FSDP_ECORRUPT && strstr(err.text, names[i]),
           "truncated: %s", err.text);
        if (pwrite(fd, &last, 1, st.st_size - 1) != 1)
            exit(99);
        close(fd);
    }
    ok(!unseen && !unnamed, "every byte that changes is seen (%d not), and its file named (%d not)",
       unseen, unnamed);
}

static void test_refusals(void)
{
    const char *const paths[] = {"a.txt"}, *const missing[] = {"missing.txt"};
    struct encode_opts opts = ENCODE_OPTS_INIT;
    struct data_text large = bytes;
    struct fsdp_err err = FSDP_ERR_INIT;
    struct tokens_info info;
    struct tokens *t = NULL;

    ok(tokens_open(&t, "missing.u16", &err) == FSDP_ENOTFOUND && strstr(err.text, "missing.u16"),
       "%s", err.text);
    ok(encode(&info, "x.u16", 1, missing, false, &err) == FSDP_ENOTFOUND &&
           strstr(err.text, "missing.txt"),
       "%s", err.text);
    ok(encode(&info, "nowhere/x.u16", 1, paths, false, &err) == FSDP_ENOTFOUND &&
           strstr(err.text, "nowhere"),
       "%s", err.text);
    large.vocab_size = 70000;
    opts.npaths = 1;
    opts.paths = paths;
    opts.text = &large;
    opts.token_nbytes = 2;
    ok(encode_run(&info, "x.u16", &opts, &err) == FSDP_EINVAL && strstr(err.text, ".u32"), "%s",
       err.text);
    opts.token_nbytes = 0;
    ok(!encode_run(&info, "x.u32", &opts, &err) && info.token_nbytes == 4,
       "a large vocabulary takes 32 bits");
}

int main(void)
{
    if (chdir(getenv("TEST_TMP")))
        return 1;
    test_kinds();
    test_source_hash();
    test_bad_lines();
    test_damage();
    test_refusals();
    return tap_done();
}
