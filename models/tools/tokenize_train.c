/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "data/tokens/count.h"
#include "interrupt.h"
#include "text/train/vocab_train.h"
#include "tokenize.h"

/* Of Llama 3's tokenizer: its words. */
static const char llama3_pattern[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"
    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

static const char *choose_pattern(const char *pattern)
{
    if (!strcmp(pattern, "gpt2"))
        return NULL;
    return strcmp(pattern, "llama3") != 0 ? pattern : llama3_pattern;
}

static int check_folder(const struct tokenize_settings *set, struct fsdp_err *err)
{
    struct stat st;
    char *path = fsdp_sprintf(err, "%s/tokenizer.json", set->output);

    if (!path)
        return FSDP_ENOMEM;
    int rc = FSDP_OK;
    if (!set->overwrite && lstat(path, &st) == 0)
        rc = fsdp_err_set(err, FSDP_EEXIST, "'%s' already exists (--overwrite replaces it)", path);
    fsdp_free(path);
    return rc;
}

static int on_merge(void *ctx, int nmerges, int nwanted, struct fsdp_err *err)
{
    (void)ctx, (void)nmerges, (void)nwanted;
    return interrupt_came ? fsdp_err_set(err, FSDP_ECANCELED, "stopped by a signal") : FSDP_OK;
}

static void print_stats(const struct vocab_train *train, const struct tokenize_settings *set,
                        uint64_t nbad)
{
    struct vocab_train_stats stats;

    vocab_train_stats(&stats, train);
    printf("%s: %d tokens of %" PRIu64 " words (%" PRIu64 " distinct) in %" PRIu64
           " bytes of text\n",
           set->output, stats.ntokens, stats.nwords, stats.ndistinct, stats.nbytes);
    if (nbad)
        printf("%" PRIu64 " lines are left out\n", nbad);
    if (stats.ntokens < set->train)
        fprintf(stderr,
                "fsdp-tokenize: warning: the text has pairs for %d tokens alone, not for %d\n",
                stats.ntokens, set->train);
}

int tokenize_train(const struct tokenize_settings *set, const struct encode_opts *opts,
                   struct fsdp_err *err)
{
    static const char *const usual[] = {"<|endoftext|>"};
    struct vocab_train_opts vocab = VOCAB_TRAIN_OPTS_INIT;
    struct vocab_train *train = NULL;
    uint64_t nbad = 0;

    FSDP_TRY(check_folder(set, err));
    vocab.vocab_size = set->train;
    vocab.pattern = choose_pattern(set->pattern);
    vocab.nspecial = set->nspecial_tokens ? set->nspecial_tokens : 1;
    vocab.special = set->nspecial_tokens ? set->special_tokens : usual;
    FSDP_TRY(vocab_train_create(&train, &vocab, err));
    int rc = encode_count(train, &vocab, opts, &nbad, err);
    tokenize_progress_end(opts->progress_ctx);
    if (rc == FSDP_OK)
        rc = vocab_train_finish(train, on_merge, NULL, err);
    if (rc == FSDP_OK)
        rc = vocab_train_write(train, set->output, err);
    if (rc == FSDP_OK)
        print_stats(train, set, nbad);
    vocab_train_destroy(train);
    return rc;
}
