/* SPDX-License-Identifier: Apache-2.0 */
/* One run under other settings, each change alone. */
#include <string.h>

#include "scale.h"

enum { MAX_CHANGES = 3, CHANGE_TEXT = 64, MOST = 192 };

struct change {
    const char *name;
    const char *setting[MAX_CHANGES]; /* "%d": the GPUs of a node */
    bool over_nodes;                  /* there must be several nodes */
};

static const struct change changes[] = {
    {"no activation checkpointing", {"fsdp.activation_checkpointing=none"}, false},
    {"checkpointing selective", {"fsdp.activation_checkpointing=selective"}, false},
    {"checkpointing full", {"fsdp.activation_checkpointing=full"}, false},
    {"FULL_SHARD",
     {"fsdp.sharding_strategy=FULL_SHARD", "fsdp.shard_size=auto", "fsdp.two_level=false"},
     false},
    {"FULL_SHARD, two levels",
     {"fsdp.sharding_strategy=FULL_SHARD", "fsdp.shard_size=auto", "fsdp.two_level=true"},
     true},
    {"HYBRID_SHARD by node",
     {"fsdp.sharding_strategy=HYBRID_SHARD", "fsdp.shard_size=%d", "fsdp.two_level=false"},
     true},
    {"SHARD_GRAD_OP",
     {"fsdp.sharding_strategy=SHARD_GRAD_OP", "fsdp.shard_size=auto", "fsdp.two_level=false"},
     false},
    {"NO_SHARD",
     {"fsdp.sharding_strategy=NO_SHARD", "fsdp.shard_size=auto", "fsdp.two_level=false"},
     false},
    {"optimizer offloaded", {"fsdp.offload=optimizer"}, false},
    {"parameters offloaded", {"fsdp.offload=params"}, false},
    {"activations offloaded", {"fsdp.offload_activations=true"}, false},
    {"gradients offloaded", {"fsdp.offload_gradients=true"}, false},
    {"products in 8 bits", {"model.linear_dtype=float8_e4m3"}, false},
};

static int answer_change(struct answer *out, const struct question *q, const struct change *change,
                         struct fsdp_err *err)
{
    const int node = q->cluster->clock.net.node_nranks;
    char text[MAX_CHANGES][CHANGE_TEXT], *overrides[MOST];
    struct question changed = *q;
    int n = 0;

    if (q->noverrides + MAX_CHANGES > MOST)
        return fsdp_err_set(err, FSDP_EINVAL, "more than %d settings", MOST);
    for (int i = 0; i < q->noverrides; i++)
        overrides[n++] = q->overrides[i];
    for (int i = 0; i < MAX_CHANGES && change->setting[i]; i++) {
        const char *mark = strstr(change->setting[i], "%d");
        if (mark)
            snprintf(text[i], CHANGE_TEXT, "%.*s%d", (int)(mark - change->setting[i]),
                     change->setting[i], node);
        else
            snprintf(text[i], CHANGE_TEXT, "%s", change->setting[i]);
        overrides[n++] = text[i];
    }
    changed.overrides = overrides;
    changed.noverrides = n;
    changed.quick = true;
    return answer_make(out, &changed, err);
}

/* The same list in the same memory: the run has this setting already. */
static bool is_same(const struct answer *a, const struct answer *b)
{
    return a->step_s == b->step_s && a->device_nbytes == b->device_nbytes &&
           a->node_host_nbytes == b->node_host_nbytes;
}

int settings_make(struct settings *out, const struct question *q, struct fsdp_err *err)
{
    struct question own = *q;

    own.quick = true;
    memset(out, 0, sizeof *out);
    FSDP_TRY(answer_make(&out->answer[0], &own, err));
    snprintf(out->name[0], sizeof out->name[0], "the run's own");
    out->nsettings = 1;
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        struct answer *answer = &out->answer[out->nsettings];
        struct fsdp_err why = FSDP_ERR_INIT;
        if (out->nsettings == SETTINGS_MAX ||
            (changes[i].over_nodes && out->answer[0].nnodes < 2) ||
            answer_change(answer, q, &changes[i], &why) || is_same(answer, &out->answer[0]))
            continue;
        snprintf(out->name[out->nsettings++], sizeof out->name[0], "%s", changes[i].name);
    }
    return FSDP_OK;
}
