/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "fit.h"
#include "plan/search/advice.h"

/* The memory that the run has: what it may take, or the device's, or a rank's part of the host's. */
static void set_memory(struct cluster *c, const struct train_parts *p, int node_nranks)
{
    struct fsdp_device_clock *d = &c->clock.device;
    struct fsdp_device_look look;

    if (p->config->fsdp.memory_limit > 0) {
        d->memory_nbytes = p->config->fsdp.memory_limit * (double)(1 << 30);
        d->reserved_nbytes = 0;
    } else if (fsdp_device_is_host(p->device)) {
        d->memory_nbytes /= node_nranks;
    } else if (!fsdp_device_look(p->device, &look, NULL) && look.total_nbytes) {
        d->memory_nbytes = (double)look.total_nbytes;
    }
}

static const char *gpu_word(const struct train_parts *p)
{
    struct fsdp_device_look look = {.model = ""};

    if (fsdp_device_is_host(p->device))
        return "cpu";
    fsdp_device_look(p->device, &look, NULL);
    const char *word = stock_word_of(look.model);
    return word ? word : "h100";
}

/* Of what fits the fastest, before it what changes no numbers. */
static const struct advised *choose(const struct advice *a)
{
    const struct advised *best = NULL;

    for (int i = 0; i < a->nitems; i++) {
        const struct advised *item = &a->item[i];
        if (!item->fits || item->change.group == CHANGE_BUY || item->change.group == CHANGE_BATCH)
            continue;
        if (!best || item->change.group < best->change.group)
            best = item;
    }
    return best;
}

static void tell_settings(const struct advised *item, const struct config *config)
{
    char where[CONFIG_TEXT + 128], key[CHANGE_TEXT];

    fsdp_log(FSDP_LOG_ERROR, "what makes it fit, for %+.0f %% of the time as planned:",
             -100 * item->gain);
    for (int i = 0; i < item->change.nsettings; i++) {
        const char *setting = item->change.setting[i];
        snprintf(key, sizeof key, "%.*s", (int)strcspn(setting, "="), setting);
        fsdp_log(FSDP_LOG_ERROR, "  %-46s (now in %s)", setting,
                 config_where(where, sizeof where, config, key));
    }
}

void train_fit_tell(const struct train_parts *p, const struct fsdp_node_map *nodes,
                    const char *config, int noverrides, char *const *overrides)
{
    enum { MOST_SECONDS = 3 };
    const struct advice_opts opts = {.seconds = MOST_SECONDS};
    const int node_nranks = nodes->nranks / (nodes->nnodes > 0 ? nodes->nnodes : 1);
    const char *word = gpu_word(p);
    struct cluster cluster;
    struct answer now;

    if (cluster_words(&cluster, word, "400Gbx8", node_nranks, NULL))
        return;
    set_memory(&cluster, p, node_nranks);
    const struct question question = {.config = config,
                                      .noverrides = noverrides,
                                      .overrides = overrides,
                                      .cluster = &cluster,
                                      .ngpus = nodes->nranks,
                                      .tokens = -1,
                                      .quick = true};
    struct advice *advice = fsdp_alloc(1, sizeof *advice, "advice", NULL);
    if (advice && !answer_make(&now, &question, NULL) && !now.fits) {
        advice_make(advice, &now, &question, &opts);
        const struct advised *item = choose(advice);
        if (item)
            tell_settings(item, p->config);
        else
            fsdp_log(FSDP_LOG_ERROR, "no setting alone and no pair of them makes it fit: search "
                                     "with --search, or take more ranks");
        fsdp_log(FSDP_LOG_ERROR, "more: fsdp-plan %s --gpus %d --node-size %d --gpu %s --advice always",
                 config ? config : "RUN.yaml", nodes->nranks, node_nranks, word);
    }
    fsdp_free(advice);
    cluster_close(&cluster);
}
