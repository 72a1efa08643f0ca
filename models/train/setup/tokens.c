/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank tokenizes in a separate thread. Meanwhile all ranks exchange at intervals whether it is
 * still working. A lost rank is therefore noticed, all ranks agree on a failure, and the deadline
 * of the channel does not limit the time of tokenizing.
 */
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "data.h"
#include "data/cache/cache.h"
#include "remote/store_remote.h"
#include "text/tokenizer/tokenizer.h"
#include "tokens.h"

enum { FIRST_WAIT_MS = 2, LONGEST_WAIT_MS = 500, REPORT_S = 5 };

/* The work of one rank for its node: it writes the cache entry of one source. */
struct work {
    struct encode_opts opts;
    const char **paths; /* opts.paths, owned */
    const char *folder;
    bool (*stop_requested)(void);
    cpu_set_t cores; /* of all ranks of the machine; the others wait */
    uint64_t key;
    bool has_key; /* key is rank 0's; this node's sources must have the same */
    double reported;
    atomic_bool done;
    int rc;
    struct fsdp_err err;
};

bool train_tokens_needed(const struct data_text *text, int format)
{
    return text->tokenizer && (format == DATA_TEXT || format == DATA_JSONL);
}

/* ---- one rank's work ------------------------------------------------------------------------- */

static int log_progress(void *ctx, const struct encode_progress *p, struct fsdp_err *err)
{
    struct work *w = ctx;
    char share[16] = "";

    if (w->stop_requested && w->stop_requested())
        return fsdp_err_set(err, FSDP_ECANCELED,
                            "stopped on request while tokenizing; the next run tokenizes this text "
                            "again from its beginning (fsdp-tokenize can resume)");
    if (p->seconds - w->reported < REPORT_S)
        return FSDP_OK;
    w->reported = p->seconds;
    if (p->nbytes)
        snprintf(share, sizeof share, "%.0f%%, ", 100 * (double)p->done / (double)p->nbytes);
    fsdp_log(FSDP_LOG_INFO, "data: tokenizing: %s%" PRIu64 " tokens, %.1f MB/s", share, p->ntokens,
             (double)p->done / 1e6 / p->seconds);
    return FSDP_OK;
}

/* Is the entry there? It is then read, and its checksums are compared. */
static int find_whole(bool *exists, const struct work *w, struct fsdp_err *err)
{
    char *path = NULL;

    FSDP_TRY(data_cache_find(&path, exists, w->folder, w->key, err));
    const int rc = *exists ? data_cache_check(path, err) : FSDP_OK;
    fsdp_free(path);
    return rc;
}

/* Finds the entry, or writes it from this node's copy of the sources. */
static int find_or_make(struct work *w, struct fsdp_err *err)
{
    const uint64_t wanted = w->key;
    bool exists = false;

    if (w->has_key)
        FSDP_TRY(find_whole(&exists, w, err));
    if (exists)
        return FSDP_OK;
    FSDP_TRY(data_cache_key(&w->key, w->folder, &w->opts, err));
    if (w->has_key && w->key != wanted)
        return fsdp_err_set(err, FSDP_EMISMATCH, "%s: the files differ from those of rank 0",
                            w->opts.paths[0]);
    FSDP_TRY(find_whole(&exists, w, err));
    if (exists)
        return FSDP_OK;
    fsdp_log(FSDP_LOG_INFO, "data: tokenizing %s%s with %s, into %s", w->opts.paths[0],
             w->opts.npaths > 1 ? " and others" : "", tokenizer_path(w->opts.text->tokenizer),
             w->folder);
    return data_cache_make(w->folder, w->key, &w->opts, err);
}

static void *work_thread(void *ctx)
{
    struct work *w = ctx;

    /* Its child threads inherit the cores. A failure only makes the work slower. */
    sched_setaffinity(0, sizeof w->cores, &w->cores);
    w->rc = find_or_make(w, &w->err);
    atomic_store(&w->done, true);
    return NULL;
}

/* ---- all ranks ------------------------------------------------------------------------------- */

static void sleep_ms(int ms)
{
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000L}, NULL);
}

/* Returns when no rank is working. Collective. */
static int wait_for_all(struct fsdp_oob *oob, const struct work *mine, int32_t *all,
                        struct fsdp_err *err)
{
    for (int ms = FIRST_WAIT_MS;; ms = 2 * ms < LONGEST_WAIT_MS ? 2 * ms : LONGEST_WAIT_MS) {
        const int32_t works = mine && !atomic_load(&mine->done);
        int nworking = 0;
        FSDP_TRY(oob->allgather(oob, &works, sizeof works, all, err));
        for (int rank = 0; rank < oob->size; rank++)
            nworking += all[rank];
        if (!nworking)
            return FSDP_OK;
        sleep_ms(ms);
    }
}

/* Ranks with `act` work; the others wait. Collective, agreed. */
static int work_and_wait(struct work *w, bool act, struct fsdp_oob *oob, struct fsdp_err *err)
{
    int32_t *all = fsdp_alloc((size_t)oob->size, sizeof *all, "ranks that work", err);
    pthread_t thread;
    bool started = false;
    int rc = all ? FSDP_OK : FSDP_ENOMEM;

    if (!rc && act && pthread_create(&thread, NULL, work_thread, w))
        rc = fsdp_err_set(err, FSDP_ENOMEM, "data: cannot start a thread to tokenize");
    else
        started = !rc && act;
    const int failed = fsdp_oob_agree(oob, rc, err);
    if (!failed)
        rc = wait_for_all(oob, act ? w : NULL, all, err);
    if (started)
        pthread_join(thread, NULL);
    fsdp_free(all);
    if (failed || rc)
        return failed ? failed : rc;
    rc = act ? w->rc : FSDP_OK;
    if (rc)
        fsdp_err_pass(err, rc, &w->err);
    return fsdp_oob_agree(oob, rc, err);
}

static bool leads_node(const struct fsdp_node_map *nodes, int rank)
{
    for (int r = 0; r < rank; r++)
        if (nodes->node_of[r] == nodes->node_of[rank])
            return false;
    return true;
}

/* *out: the token file of one source, on all ranks. */
static int tokens_of_source(char **out, struct work *w, struct fsdp_oob *oob,
                            const struct fsdp_node_map *nodes, struct fsdp_err *err)
{
    const bool leads = leads_node(nodes, oob->rank);
    bool exists;

    FSDP_TRY(work_and_wait(w, oob->rank == 0, oob, err));
    FSDP_TRY(fsdp_oob_broadcast(oob, &w->key, sizeof w->key, 0, err));
    w->has_key = true;
    if (nodes->nnodes > 1)
        FSDP_TRY(work_and_wait(w, leads && oob->rank > 0, oob, err));
    int rc = data_cache_find(out, &exists, w->folder, w->key, err);
    if (!rc && !exists)
        rc = fsdp_err_set(err, FSDP_ENOTFOUND,
                          "%s is missing, although another rank of this node wrote it; all "
                          "ranks of a node must use the same data.cache",
                          *out);
    return fsdp_oob_agree(oob, rc, err);
}

static int fill_work(struct work *w, struct train_parts *p, int i,
                     const struct fsdp_tunable_list *list, const struct config_source *source,
                     struct fsdp_err *err)
{
    const bool held_out = i == config_nsources(p->config);

    w->paths = fsdp_alloc((size_t)list->nelem, sizeof *w->paths, "data paths", err);
    if (!w->paths)
        return FSDP_ENOMEM;
    for (int k = 0; k < list->nelem; k++)
        w->paths[k] = fsdp_tunable_list_at(list, k);
    w->opts = (struct encode_opts)ENCODE_OPTS_INIT;
    w->opts.npaths = list->nelem;
    w->opts.paths = w->paths;
    w->opts.format = source->format == DATA_JSONL ? ENCODE_LINES : ENCODE_TEXT;
    w->opts.remote = &store_remote;
    w->opts.text = &p->text.of[i];
    w->opts.text_key = held_out ? p->config->data.text_key : config_source_text_key(p->config, i);
    w->opts.skip_bad_lines = source->on_bad_line == CONFIG_BAD_LINE_SKIP;
    w->opts.progress = log_progress;
    w->opts.progress_ctx = w;
    return FSDP_OK;
}

static int blame_source(const struct train_parts *p, int i, struct fsdp_err *why, int rc,
                        struct fsdp_err *err)
{
    const struct config *c = p->config;
    char where[CONFIG_TEXT + 128];

    if (i == config_nsources(c)) {
        config_where(where, sizeof where, c, "data.eval_path");
        return train_data_blame(why, rc, where, "data.eval_path", err);
    }
    config_where_source(where, sizeof where, c, i);
    return train_data_blame(why, rc, where, c->nsources ? "data.sources" : "data.path", err);
}

static int prepare_source(struct train_parts *p, int i, const char *folder, struct fsdp_oob *oob,
                          const struct fsdp_node_map *nodes, struct fsdp_err *err)
{
    const bool held_out = i == config_nsources(p->config);
    struct fsdp_err why = FSDP_ERR_INIT;
    struct config_source source;
    struct work w = {.folder = folder,
                     .cores = p->cores.all,
                     .stop_requested = p->stop_requested,
                     .err = FSDP_ERR_INIT};

    if (held_out)
        config_source_plain(&source, p->config);
    else
        config_source(&source, p->config, i);
    const struct fsdp_tunable_list *list = held_out ? &p->config->data.eval_path : &source.path;
    if (!list->nelem || !train_tokens_needed(&p->text.of[i], source.format))
        return FSDP_OK;
    if (p->config->train.objective == CONFIG_DPO)
        return FSDP_OK; /* nor pairs */
    if (!held_out && p->config->data.weight_key[0] && source.format == DATA_JSONL)
        return FSDP_OK; /* token files have no weights */
    int rc = fsdp_oob_agree(oob, fill_work(&w, p, i, list, &source, err), err);
    if (!rc) {
        rc = tokens_of_source(&p->tokens[i], &w, oob, nodes, &why);
        p->stopped = rc == FSDP_ECANCELED;
        if (p->stopped)
            fsdp_err_pass(err, rc, &why);
        else if (rc)
            rc = blame_source(p, i, &why, rc, err);
    }
    fsdp_free(w.paths);
    return rc;
}

int train_tokens_prepare(struct train_parts *p, struct fsdp_oob *oob,
                         const struct fsdp_node_map *nodes, struct fsdp_err *err)
{
    const int nsources = config_nsources(p->config);
    char *folder = NULL;
    int rc = FSDP_OK;

    if (p->config->train.steps == 0 || !p->text.tokenizer)
        return FSDP_OK;
    rc = data_cache_folder(&folder, p->config->data.cache, err);
    rc = fsdp_oob_agree(oob, fsdp_err_blame(err, rc, "data.cache"), err);
    for (int i = 0; rc == FSDP_OK && i <= nsources; i++)
        rc = prepare_source(p, i, folder, oob, nodes, err);
    fsdp_free(folder);
    return rc;
}

void train_tokens_close(struct train_parts *p)
{
    for (int i = 0; i <= CONFIG_MAX_SOURCES; i++)
        fsdp_free(p->tokens[i]);
}
