/* SPDX-License-Identifier: Apache-2.0 */
/* Work that is stopped at any place and continued makes the files that it makes at once. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "data/tokens/sizes.h"
#include "tap.h"
#include "text/tokenizer/tokenizer.h"

static uint64_t seed = 5;

static unsigned draw(unsigned n)
{
    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (unsigned)(seed >> 33) % n;
}

static void write_inputs(void)
{
    FILE *text = fopen("a.txt", "w"), *lines = fopen("b.jsonl", "w");

    if (!text || !lines)
        exit(99);
    for (int i = 0; i < 900; i++)
        fprintf(text, "%s%u", i % 9 ? " the token " : ",\n", draw(10000));
    for (int i = 0; i < 60; i++) {
        fprintf(lines, "{\"prompt\": \"line %d\", \"completion\": \" %u of it\"}\n", i, draw(100));
        if (i % 7 == 0)
            fputs("no document\n", lines);
    }
    if (fclose(text) || fclose(lines) || system("gzip -kf a.txt && cp a.txt c.txt && : >empty.txt"))
        exit(99);
}

static int stop_soon(void *ctx, const struct encode_progress *progress, struct fsdp_err *err)
{
    int *left = ctx;

    (void)progress;
    return (*left)-- ? FSDP_OK : fsdp_err_set(err, FSDP_ECANCELED, "enough");
}

static bool same_file(const char *a, const char *b, const char *end)
{
    char command[200];

    snprintf(command, sizeof command, "cmp %s%s %s%s >&2", a, end, b, end);
    return system(command) == 0;
}

int main(void)
{
    static const char *const paths[] = {"a.txt", "b.jsonl", "a.txt.gz", "empty.txt", "c.txt"};
    struct encode_sizes sizes = {
        .batch = 300, .piece = 1000, .overlap = 400, .agree = 48, .most = 1 << 20};
    struct tokenizer *t = NULL;
    struct fsdp_err err = FSDP_ERR_INIT;
    struct tokens_info want, got;
    char path[1000];
    int left, nstops = 0, nwrong = 0;

    if (chdir(getenv("TEST_TMP")))
        return 1;
    write_inputs();
    snprintf(path, sizeof path, "%s/tests/tokens/data/bytes.json", getenv("TOP"));
    if (tokenizer_open(&t, path, &err))
        return 1;
    const struct data_text text = {.tokenizer = t, .end = 7, .special = DATA_SPECIAL_EOS};
    struct encode_opts opts = {.version = ENCODE_OPTS_VERSION,
                               .npaths = 5,
                               .paths = paths,
                               .text = &text,
                               .nthreads = 2,
                               .skip_bad_lines = true};
    if (!ok(!encode_run(&want, "want.u16", &opts, &err) && want.nbad == 9, "at once"))
        diag("%s", err.text);
    opts.resume = true;
    opts.progress_ctx = &left;
    for (int i = 0; i < 12; i++) {
        int rc = FSDP_ECANCELED;
        opts.progress = stop_soon;
        for (int stops = 0; rc == FSDP_ECANCELED; stops++) {
            if (stops == 20)
                opts.progress = NULL;
            left = (int)draw(12);
            opts.nthreads = 1 + (int)draw(4);
            sizes.piece = 700 + draw(600);
            rc = encode_run_sized(&got, "got.u16", &opts, &sizes, &err);
            nstops += rc != FSDP_OK;
        }
        if (rc)
            diag("%s", err.text);
        nwrong += rc || memcmp(&want, &got, sizeof want) || !same_file("want.u16", "got.u16", "") ||
                  !same_file("want.u16", "got.u16", ".index") ||
                  !same_file("want.u16", "got.u16", ".learned") ||
                  !access("got.u16.part.journal", F_OK) || !access("got.u16.part", F_OK);
        if (system("rm -f got.u16*"))
            return 1;
    }
    ok(!nwrong && nstops > 50, "and after %d stops, with other threads and pieces each time",
       nstops);
    tokenizer_close(t);
    return tap_done();
}
