/* SPDX-License-Identifier: Apache-2.0 */
/* What fsdp-launch asks before any rank starts. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "launch.h"

#include "train.h"
#include "train/report/metrics_table.h"
#include "train/setup/setup.h"

static int print_error(const struct fsdp_err *err)
{
    fprintf(stderr, "fsdp-launch: %s\n", err->text);
    return LAUNCH_USAGE;
}

/* Output that cannot be written is no wrong usage. */
static int print_failure(const struct fsdp_err *err)
{
    print_error(err);
    return LAUNCH_FAILED;
}

/* What fsdp-plan leaves to be filled in. */
static int check_filled_in(const struct config *c, struct fsdp_err *err)
{
    struct config_source source;
    char where[CONFIG_TEXT + 128];

    for (int i = 0; i < config_nsources(c); i++) {
        config_source(&source, c, i);
        for (int k = 0; k < source.path.nelem; k++)
            if (!strcmp(fsdp_tunable_list_at(&source.path, k), "FILL_IN"))
                return fsdp_err_set(err, FSDP_EINVAL,
                                    "%s: FILL_IN: write the path of your data here",
                                    config_where(where, sizeof where, c, "data.path"));
    }
    return FSDP_OK;
}

int train_check(const char *config, int noverrides, char *const *overrides)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct config *settings = NULL;
    int rc = config_load(&settings, config, noverrides, overrides, &err);

    if (rc == FSDP_OK)
        rc = train_stores_check(settings, &err);
    if (rc == FSDP_OK)
        rc = check_filled_in(settings, &err);
    fsdp_free(settings);
    return rc == FSDP_OK ? LAUNCH_DONE : print_error(&err);
}

bool train_setting(char *out, size_t nbytes, const char *key, const char *config, int noverrides,
                   char *const *overrides)
{
    struct config *settings = NULL;
    const bool loaded = config_load(&settings, config, noverrides, overrides, NULL) == FSDP_OK;

    out[0] = '\0';
    if (loaded && !strcmp(key, "checkpoint.path")) /* the one text that is asked for */
        snprintf(out, nbytes, "%s", settings->checkpoint.path);
    else if (loaded)
        config_word(out, nbytes, settings, key);
    fsdp_free(settings);
    return loaded && out[0];
}

/* The nodes may have what this machine does not, so this is a warning. `where`: the setting. */
static void warn_if_missing(const char *where, const char *path)
{
    if (path[0] && !strstr(path, "://") && access(path, F_OK) != 0 && errno == ENOENT)
        fprintf(stderr,
                "fsdp-launch: warning: %s: there is no %s here (relative to this folder); the job "
                "fails unless its nodes have it\n",
                where, path);
}

void train_warn_missing(const char *config, int noverrides, char *const *overrides)
{
    struct config *c = NULL;
    struct config_source source;
    char where[CONFIG_TEXT + 128];

    if (config_load(&c, config, noverrides, overrides, NULL) != FSDP_OK)
        return;
    warn_if_missing(config_where(where, sizeof where, c, "model.path"), c->model.path);
    for (int i = 0; i < config_nsources(c); i++) {
        config_source(&source, c, i);
        config_where_source(where, sizeof where, c, i);
        for (int k = 0; k < source.path.nelem; k++)
            warn_if_missing(where, fsdp_tunable_list_at(&source.path, k));
    }
    config_where(where, sizeof where, c, "data.eval_path");
    for (int k = 0; k < c->data.eval_path.nelem; k++)
        warn_if_missing(where, fsdp_tunable_list_at(&c->data.eval_path, k));
    fsdp_free(c);
}

bool train_uses_mpi(const char *config, int noverrides, char *const *overrides)
{
    char word[16] = "";

    return train_setting(word, sizeof word, "fsdp.backend", config, noverrides, overrides) &&
           strcmp(word, "mpi") == 0;
}

static int check_batch(const struct config *c, int nranks, struct fsdp_err *err)
{
    struct config_batch batch;
    char where[400], advice[200];

    config_divide(&batch, c, nranks);
    config_where(where, sizeof where, c, "train.global_batch_size");
    if (batch.rows < nranks)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "%s: a step has %" PRId64 " rows for %d ranks, so %" PRId64
                            " ranks would have none. Type train.global_batch_size=%d or a multiple "
                            "of it, or ask for fewer ranks",
                            where, batch.rows, nranks, nranks - batch.rows, nranks);
    if (config_batch_waste(&batch) > 0)
        fprintf(stderr, "fsdp-launch: warning: %s: %s\n", where,
                config_batch_advice(advice, sizeof advice, &batch, c));
    return FSDP_OK;
}

int train_check_ranks(const char *config, int noverrides, char *const *overrides, int nranks)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct config *settings = NULL;
    int rc = config_load(&settings, config, noverrides, overrides, &err);

    if (rc == FSDP_OK)
        rc = check_batch(settings, nranks, &err);
    fsdp_free(settings);
    return rc == FSDP_OK ? LAUNCH_DONE : print_error(&err);
}

const struct fsdp_tunable *train_keys(int *nkeys)
{
    return config_keys(nkeys);
}

int train_begin_mpi(struct fsdp_err *err)
{
    return fsdp_comm_begin_mpi(err);
}

int train_print_config(const char *config, int noverrides, char *const *overrides)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct config *settings = NULL;
    int rc = config_load_unchecked(&settings, config, noverrides, overrides, &err);

    if (rc != FSDP_OK)
        return print_error(&err);
    rc = config_print(settings, true, stdout, &err);
    if (rc == FSDP_OK)
        train_gpu_print(stdout);
    if (rc == FSDP_OK && fflush(stdout) != 0)
        rc = fsdp_err_sys(&err, errno, "standard output");
    fsdp_free(settings);
    return rc == FSDP_OK ? LAUNCH_DONE : print_failure(&err);
}

int train_print_metrics(void)
{
    struct fsdp_err err = FSDP_ERR_INIT;

    metrics_print_table(stdout);
    return fflush(stdout) == 0 && !ferror(stdout)
               ? LAUNCH_DONE
               : print_failure((fsdp_err_sys(&err, errno, "standard output"), &err));
}
