/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Learns a vocabulary, which train_tokenizer.py compares with the original's:
 *
 *     test_train_tokenizer FOLDER VOCAB_SIZE MIN_FREQUENCY PATTERN PREFIX [SPECIAL]...
 *
 * PATTERN "": GPT-2's; PREFIX 1: add_prefix_space. Standard input is texts, each after its length
 * of 32 bits; every other one is counted apart, as by a second thread. Standard error gets the
 * seconds of counting and of merging. Without arguments it has nothing to do.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tap.h"
#include "text/train/vocab_train.h"

static int count(struct vocab_train *const trains[2], struct fsdp_err *err)
{
    uint32_t nbytes;
    int rc = FSDP_OK;

    for (int i = 0; rc == FSDP_OK && fread(&nbytes, sizeof nbytes, 1, stdin) == 1; i++) {
        char *text = malloc((size_t)nbytes + 1);
        if (!text || fread(text, 1, nbytes, stdin) != nbytes)
            rc = fsdp_err_set(err, FSDP_EIO, "standard input ends in a text");
        else
            rc = vocab_train_add(trains[i % 2], text, nbytes, err);
        free(text);
    }
    return rc == FSDP_OK ? vocab_train_merge(trains[0], trains[1], err) : rc;
}

static int run(const struct vocab_train_opts *opts, const char *folder, struct fsdp_err *err)
{
    struct vocab_train *trains[2] = {NULL, NULL};
    struct vocab_train_stats stats;
    double began = fsdp_time_now();
    int rc;

    FSDP_TRY_GOTO(vocab_train_create(&trains[0], opts, err), out);
    FSDP_TRY_GOTO(vocab_train_create(&trains[1], opts, err), out);
    FSDP_TRY_GOTO(count(trains, err), out);
    fprintf(stderr, "%.3f ", fsdp_time_now() - began);
    began = fsdp_time_now();
    FSDP_TRY_GOTO(vocab_train_finish(trains[0], NULL, NULL, err), out);
    fprintf(stderr, "%.3f\n", fsdp_time_now() - began);
    vocab_train_stats(&stats, trains[0]);
    printf("%d %d %llu\n", stats.ntokens, stats.nmerges, (unsigned long long)stats.last_frequency);
    rc = vocab_train_write(trains[0], folder, err);
out:
    vocab_train_destroy(trains[0]);
    vocab_train_destroy(trains[1]);
    return rc;
}

int main(int argc, char **argv)
{
    struct vocab_train_opts opts = VOCAB_TRAIN_OPTS_INIT;
    struct fsdp_err err = FSDP_ERR_INIT;

    if (argc < 6) {
        tap_skip("tests/interop/train_tokenizer.sh runs it");
        return tap_done();
    }
    opts.vocab_size = atoi(argv[2]);
    opts.min_frequency = strtoull(argv[3], NULL, 10);
    opts.pattern = argv[4][0] ? argv[4] : NULL;
    opts.add_prefix_space = argv[5][0] == '1';
    opts.special = (const char *const *)argv + 6;
    opts.nspecial = argc - 6;
    if (run(&opts, argv[1], &err) == FSDP_OK)
        return 0;
    fprintf(stderr, "%s\n", err.text);
    return 1;
}
