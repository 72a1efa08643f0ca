/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "search.h"

const char *change_group_name(enum change_group group)
{
    static const char *const names[CHANGE_NGROUPS] = {"same numerics", "changes numerics",
                                                      "changes the batch", "another cluster"};
    return names[group];
}

struct changes {
    struct change *out;
    int max, count;
};

/* Settings are separated by spaces. */
__attribute__((format(printf, 3, 4))) static void
add_change(struct changes *list, enum change_group group, const char *format, ...)
{
    char text[CHANGE_MAX_SETTINGS * CHANGE_TEXT], *at = text;
    struct change change = {.group = group, .nnumerics = group == CHANGE_NUMERICS};
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    for (char *setting; (setting = strsep(&at, " ")) && change.nsettings < CHANGE_MAX_SETTINGS;)
        snprintf(change.setting[change.nsettings++], CHANGE_TEXT, "%s", setting);
    if (list->count < list->max)
        list->out[list->count++] = change;
}

/* ---- what there is to change ----------------------------------------------------------------- */

/* Shard groups of half a node to all ranks, by factors of two. */
static void add_strategies(struct changes *l, const struct answer *a)
{
    static const char *const whole[] = {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"};

    for (size_t i = 0; i < sizeof whole / sizeof whole[0]; i++)
        if (strcmp(a->strategy, whole[i]) != 0)
            add_change(l, CHANGE_SAME,
                       "fsdp.sharding_strategy=%s fsdp.shard_size=auto fsdp.two_level=false",
                       whole[i]);
    for (int size = a->node_nranks; size < a->nranks; size *= 2) {
        if (a->nranks % size || (a->replicate_nranks > 1 && size == a->shard_nranks))
            continue;
        add_change(l, CHANGE_SAME, "fsdp.sharding_strategy=HYBRID_SHARD fsdp.shard_size=%d", size);
        if (size > a->node_nranks)
            add_change(l, CHANGE_SAME,
                       "fsdp.sharding_strategy=HYBRID_SHARD fsdp.shard_size=%d fsdp.two_level=true",
                       size);
        if (size == a->node_nranks)
            add_change(l, CHANGE_SAME,
                       "fsdp.sharding_strategy=HYBRID_SHARD_ZERO2 fsdp.shard_size=%d", size);
    }
    if (a->nnodes > 1 && !a->two_level && a->shard_nranks > a->node_nranks)
        add_change(l, CHANGE_SAME, "fsdp.two_level=true");
}

static void add_schedule(struct changes *l, const struct answer *a)
{
    static const char *const settings[] = {"fsdp.reshard_after_forward=false",
                                           "fsdp.reshard_after_forward=true",
                                           "fsdp.activation_checkpointing=none",
                                           "fsdp.activation_checkpointing=selective",
                                           "fsdp.activation_checkpointing=full",
                                           "fsdp.forward_prefetch=2 fsdp.limit_all_gathers=3",
                                           "fsdp.backward_prefetch=2 fsdp.limit_all_gathers=3",
                                           "fsdp.grad_buffers=3",
                                           "fsdp.reduce_last=true",
                                           "fsdp.offload=none",
                                           "fsdp.offload=optimizer",
                                           "fsdp.offload=params"};

    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++)
        add_change(l, CHANGE_SAME, "%s", settings[i]);
    add_change(l, CHANGE_SAME, "%s",
               a->offloads_acts ? "fsdp.offload_activations=false" : CHANGE_ACTS);
    if (a->offloads_grads)
        add_change(l, CHANGE_SAME, "fsdp.offload_gradients=false");
    else if (a->offloads && a->fits && !a->updates_at_reduce) /* then updates may be on the host */
        add_change(l, CHANGE_SAME, CHANGE_GRADS);
    if (bound_has_masters(a))
        add_change(l, CHANGE_SAME, "optim.master=split");
    if (!a->updates_at_reduce && !a->updates_at_forward)
        add_change(l, CHANGE_SAME, "fsdp.update_at=forward");
}

/* The rows of a step stay; only their division changes. */
static void add_micro_batches(struct changes *l, const struct answer *a)
{
    enum { MOST_ROWS = 64 };

    for (int rows = 1; rows <= MOST_ROWS; rows++)
        if (rows != a->micro_rows && a->rows % ((int64_t)rows * a->nranks) == 0)
            add_change(l, CHANGE_SAME, "train.micro_batch_size=%d", rows);
}

static void add_numerics(struct changes *l, const struct answer *a)
{
    static const char *const settings[] = {
        "fsdp.param_dtype=bfloat16", "fsdp.reduce_dtype=bfloat16", "model.linear_dtype=float8_e4m3",
        "optim.moment_dtype=bfloat16", "optim.name=adamw8bit"};

    add_change(l, CHANGE_NUMERICS, "fsdp.gather_dtype=float8_e4m3%s",
               a->updates_at_forward ? " fsdp.update_at=step" : "");
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++)
        add_change(l, CHANGE_NUMERICS, "%s", settings[i]);
}

enum change_group change_early(char out[CHANGE_EARLY_NBYTES], const struct answer *a)
{
    snprintf(out, CHANGE_EARLY_NBYTES, "%s%s%s%s",
             a->updates_at_reduce ? "" : "fsdp.update_at=reduce",
             a->clips && !a->updates_at_reduce ? " optim.clip_late=true" : "",
             a->narrow_grads ? " fsdp.grad_dtype=float32" : "",
             a->offloads_grads ? " fsdp.offload_gradients=false" : "");
    return a->clips || a->narrow_grads ? CHANGE_NUMERICS : CHANGE_SAME;
}

bool change_has_disks(const struct answer *a, const struct question *q)
{
    const struct cluster *c = q->cluster;

    return c->nvme_nbytes > 0 && c->nvme_nbytes_per_s > 0 && !a->names_disks;
}

/* For memory alone: they make no step faster that fits without them. There is no shard to sum
 * several micro-steps in; their rows are one micro-step then. */
static void add_savings(struct changes *l, const struct answer *a, const struct question *q)
{
    const char *none = "optim.master=none optim.moment_dtype=bfloat16";
    char early[CHANGE_EARLY_NBYTES], rows[CHANGE_TEXT] = "";
    const enum change_group group = change_early(early, a);

    for (int params = 0; params < 2 && change_has_disks(a, q); params++)
        add_change(l, CHANGE_SAME, "fsdp.offload=%s %s", params ? "params" : "optimizer",
                   CHANGE_TO_DISKS);
    if (a->node_file_nbytes > 0)
        add_change(l, CHANGE_SAME, "fsdp.offload_dir=");
    if (!a->updates_at_reduce && !a->offloads_grads) {
        add_change(l, CHANGE_SAME, CHANGE_GRADS);
        add_change(l, CHANGE_SAME, CHANGE_GRADS " fsdp.offload=optimizer");
        add_change(l, CHANGE_SAME, CHANGE_GRADS " fsdp.offload=params");
    }
    add_change(l, CHANGE_NUMERICS, "optim.master=none");
    add_change(l, CHANGE_NUMERICS, "%s", none);
    if (a->updates_at_reduce)
        return;
    add_change(l, CHANGE_NUMERICS, "fsdp.grad_dtype=bfloat16");
    add_change(l, CHANGE_NUMERICS, "%s fsdp.grad_dtype=bfloat16", none);
    if (a->accumulation > 1 && !a->reduces_last)
        snprintf(rows, sizeof rows, " train.micro_batch_size=%d", a->micro_rows * a->accumulation);
    add_change(l, group, "%s%s", early, rows);
    add_change(l, CHANGE_NUMERICS, "%s%s %s", early, rows, none);
    add_change(l, CHANGE_NUMERICS, "%s%s %s fsdp.reduce_dtype=bfloat16", early, rows, none);
}

/* More rows of a micro-batch alone are another change, where the step has them. */
static void add_batches(struct changes *l, const struct answer *a)
{
    for (int factor = 2; factor <= 4; factor *= 2) {
        if (a->accumulation == 1)
            add_change(l, CHANGE_BATCH, "train.global_batch_size=%lld train.micro_batch_size=%d",
                       (long long)a->rows * factor, a->micro_rows * factor);
        add_change(l, CHANGE_BATCH, "train.global_batch_size=%lld train.micro_batch_size=%d",
                   (long long)a->rows * factor, a->micro_rows);
    }
}

static void add_cluster(struct changes *l, const struct answer *a, const struct question *q)
{
    static const char *const next[][2] = {{"a100", "h100"},
                                          {"a100-40", "a100"},
                                          {"h100-500w", "h100"},
                                          {"h100", "h200"},
                                          {"h200", "b200"}};
    double gbits = 0;
    int cards = 0;

    for (size_t i = 0; i < sizeof next / sizeof next[0]; i++)
        if (!strcmp(q->cluster->gpu, next[i][0]))
            add_change(l, CHANGE_BUY, "gpu=%s", next[i][1]);
    if (a->nnodes > 1 && sscanf(q->cluster->net, "%lfGbx%d", &gbits, &cards) == 2)
        add_change(l, CHANGE_BUY, "net=%gGbx%d", 2 * gbits, cards);
    if (a->rows % (2 * a->nranks) == 0)
        add_change(l, CHANGE_BUY, "gpus=%d", 2 * a->nranks);
}

/* Settings without which no update runs on the host. */
static bool forbids_host(const struct change *c)
{
    static const char *const against[] = {"fsdp.offload=none", "fsdp.offload_gradients=false",
                                          "fsdp.update_at=reduce", "fsdp.gather_dtype="};

    for (int i = 0; i < c->nsettings; i++)
        for (size_t k = 0; k < sizeof against / sizeof against[0]; k++)
            if (!strncmp(c->setting[i], against[k], strlen(against[k])))
                return true;
    return false;
}

/* Where the run sets fsdp.offload_update: the other value; and auto in changes that rule out
 * updates on the host. */
static void add_updates(struct changes *l, const struct answer *a)
{
    if (!a->names_update)
        return;
    for (int i = 0; i < l->count; i++) {
        struct change *c = &l->out[i];
        if (a->updates_on_host && forbids_host(c) && c->nsettings < CHANGE_MAX_SETTINGS)
            snprintf(c->setting[c->nsettings++], CHANGE_TEXT, "fsdp.offload_update=auto");
    }
    if (a->offloads && a->offloads_grads)
        add_change(l, CHANGE_SAME, "fsdp.offload_update=%s",
                   a->updates_on_host ? "device" : "host");
}

void change_pin_update(struct change *c, const struct answer *then, bool both)
{
    static const char key[] = "fsdp.offload_update=";
    int at = 0;

    while (at < c->nsettings && strncmp(c->setting[at], key, sizeof key - 1) != 0)
        at++;
    const bool is_auto =
        at < c->nsettings ? !strcmp(c->setting[at] + sizeof key - 1, "auto") : !then->names_update;
    if (!is_auto || !then->offloads || !then->offloads_grads || at == CHANGE_MAX_SETTINGS ||
        !(both || then->updates_on_host))
        return;
    snprintf(c->setting[at], CHANGE_TEXT, "%s%s", key, then->updates_on_host ? "host" : "device");
    c->nsettings += at == c->nsettings;
}

int change_list(struct change *out, int max, const struct answer *a, const struct question *q)
{
    struct changes list = {out, max, 0};

    add_strategies(&list, a);
    add_schedule(&list, a);
    add_micro_batches(&list, a);
    add_numerics(&list, a);
    if (!a->fits)
        add_savings(&list, a, q);
    add_updates(&list, a);
    add_batches(&list, a);
    add_cluster(&list, a, q);
    return list.count;
}

/* ---- changes --------------------------------------------------------------------------------- */

static size_t key_length(const char *setting)
{
    return strcspn(setting, "=");
}

static bool sets(const struct change *c, const char *setting)
{
    for (int i = 0; i < c->nsettings; i++)
        if (key_length(c->setting[i]) == key_length(setting) &&
            !strncmp(c->setting[i], setting, key_length(setting)))
            return true;
    return false;
}

bool change_join(struct change *out, const struct change *a, const struct change *b)
{
    if ((a->group == CHANGE_BUY) != (b->group == CHANGE_BUY))
        return false;
    *out = *a;
    out->group = b->group > a->group ? b->group : a->group;
    out->nnumerics = a->nnumerics + b->nnumerics;
    for (int i = 0; i < b->nsettings; i++) {
        if (out->nsettings == CHANGE_MAX_SETTINGS || sets(a, b->setting[i]))
            return false;
        memcpy(out->setting[out->nsettings++], b->setting[i], CHANGE_TEXT);
    }
    return true;
}

const char *change_text(char *out, size_t out_nbytes, const struct change *c)
{
    size_t at = 0;

    out[0] = 0;
    for (int i = 0; i < c->nsettings && at < out_nbytes; i++) {
        const bool gpus = c->group == CHANGE_BUY && !strncmp(c->setting[i], "gpus=", 5);
        const char *option = c->group != CHANGE_BUY ? "" : gpus ? "--gpus " : "--what-if ";
        at += (size_t)snprintf(out + at, out_nbytes - at, "%s%s%s", i ? " " : "", option,
                               c->setting[i] + (gpus ? 5 : 0));
    }
    return out;
}

/* ---- planning with a change ------------------------------------------------------------------ */

static int answer_settings(struct answer *out, const struct question *q, const struct change *c,
                           struct fsdp_err *err)
{
    enum { MOST = 192 };
    char *overrides[MOST];
    struct question changed = *q;
    int n = 0;

    if (q->noverrides + c->nsettings > MOST)
        return fsdp_err_set(err, FSDP_EINVAL, "more than %d settings", MOST);
    for (int i = 0; i < q->noverrides; i++)
        overrides[n++] = q->overrides[i];
    for (int i = 0; i < c->nsettings; i++)
        overrides[n++] = (char *)(uintptr_t)c->setting[i];
    changed.overrides = overrides;
    changed.noverrides = n;
    return answer_make(out, &changed, err);
}

static int change_key(struct cluster *c, const char *setting, struct fsdp_err *err)
{
    const size_t len = key_length(setting);
    char key[CHANGE_TEXT];

    snprintf(key, sizeof key, "%.*s", (int)len, setting);
    return cluster_set(c, key, setting + len + (setting[len] == '='), err);
}

/* The cluster is made anew, as the question's was, and changed. */
static int answer_cluster(struct answer *out, const struct question *q, const struct change *c,
                          struct fsdp_err *err)
{
    struct question changed = *q;
    struct cluster cluster;
    int rc = FSDP_OK;

    FSDP_TRY(*q->cluster->path ? cluster_load(&cluster, q->cluster->path, err)
                               : cluster_words(&cluster, q->cluster->gpu, q->cluster->net,
                                               q->cluster->node_ngpus, err));
    for (int i = 0; i < q->nwhat_ifs && rc == FSDP_OK; i++)
        rc = change_key(&cluster, q->what_if[i], err);
    for (int i = 0; i < c->nsettings && rc == FSDP_OK; i++) {
        if (!strncmp(c->setting[i], "gpus=", 5))
            changed.ngpus = atoi(c->setting[i] + 5);
        else
            rc = change_key(&cluster, c->setting[i], err);
    }
    changed.cluster = &cluster;
    if (rc == FSDP_OK)
        rc = answer_make(out, &changed, err);
    cluster_close(&cluster);
    return rc;
}

int change_answer(struct answer *out, const struct question *q, const struct change *c,
                  struct fsdp_err *err)
{
    return c->group == CHANGE_BUY ? answer_cluster(out, q, c, err)
                                  : answer_settings(out, q, c, err);
}
