/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "boot.h"
#include "launch.h"

#include "fit.h"
#include "plan/search/advice.h"
#include "train/node/health.h"

/* Before there is a step, and under --check, where nobody listens to fsdp_log. */
__attribute__((format(printf, 1, 2))) static void say(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    fputs("error: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
}

/* The memory that the run has: the device's, or a rank's part of the host's. */
static void set_memory(struct cluster *c, const struct train_parts *p, int node_nranks)
{
    struct fsdp_device_clock *d = &c->clock.device;
    struct fsdp_device_look look;

    if (fsdp_device_is_host(p->device))
        d->memory_nbytes /= node_nranks;
    else if (!fsdp_device_look(p->device, &look, NULL) && look.total_nbytes)
        d->memory_nbytes = (double)look.total_nbytes;
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

    say("what makes it fit, for %+.0f %% of the time as planned:", -100 * item->gain);
    for (int i = 0; i < item->change.nsettings; i++) {
        const char *setting = item->change.setting[i];
        snprintf(key, sizeof key, "%.*s", (int)strcspn(setting, "="), setting);
        if (config_is_given(config, key))
            say("  %-46s (now in %s)", setting, config_where(where, sizeof where, config, key));
        else
            say("  %-46s (not given so far)", setting);
    }
}

/* As a word of the shell. */
static void print_quoted(const char *text)
{
    fputs(" '", stderr);
    for (const char *c = text; *c; c++)
        if (*c == '\'')
            fputs("'\\''", stderr);
        else
            fputc(*c, stderr);
    fputc('\'', stderr);
}

static void tell_command(const struct question *q, const char *word)
{
    fprintf(stderr, "error: more: fsdp-plan %s --gpus %d --node-size %d --gpu %s --advice always",
            q->config ? q->config : "RUN.yaml", q->ngpus, q->cluster->clock.net.node_nranks, word);
    for (int i = 0; i < q->noverrides; i++)
        print_quoted(q->overrides[i]);
    fputc('\n', stderr);
}

static void tell_advice(const struct answer *now, const struct question *question,
                        const struct config *config, const char *word)
{
    enum { MOST_SECONDS = 3 };
    const struct advice_opts opts = {.seconds = MOST_SECONDS};
    struct advice *advice = fsdp_alloc(1, sizeof *advice, "advice", NULL);

    if (!advice)
        return;
    advice_make(advice, now, question, &opts);
    const struct advised *item = choose(advice);
    if (item)
        tell_settings(item, config);
    else
        say("no setting alone and no pair of them makes it fit: search with "
            "--search, or take more ranks");
    tell_command(question, word);
    fsdp_free(advice);
}

bool train_fit_tell(const struct train_parts *p, const struct fsdp_node_map *nodes,
                    const char *config, int noverrides, char *const *overrides)
{
    const int node_nranks = nodes->nranks / (nodes->nnodes > 0 ? nodes->nnodes : 1);
    const char *word = gpu_word(p);
    struct cluster cluster;
    struct fsdp_err err = FSDP_ERR_INIT;
    struct answer now;
    bool fits = true;

    if (cluster_words(&cluster, word, "400Gbx8", node_nranks, &err))
        return true;
    set_memory(&cluster, p, node_nranks);
    const struct question question = {.config = config,
                                      .noverrides = noverrides,
                                      .overrides = overrides,
                                      .cluster = &cluster,
                                      .ngpus = nodes->nranks,
                                      .tokens = -1,
                                      .quick = true};
    if (!answer_make(&now, &question, &err)) {
        fits = now.fits;
        if (!fits)
            tell_advice(&now, &question, p->config, word);
    }
    cluster_close(&cluster);
    return fits;
}

/* ---- fsdp-launch --check --------------------------------------------------------------------- */

static bool fits_here(struct boot *boot, const char *config, int noverrides, char *const *overrides)
{
    struct train_parts parts = {.config = NULL};
    char device[32];
    bool fits = true;

    if (!config_load(&parts.config, config, noverrides, overrides, NULL) &&
        !fsdp_device_open(&parts.device,
                          config_word(device, sizeof device, parts.config, "fsdp.device"), 0, NULL))
        fits = train_fit_tell(&parts, boot_nodes(boot), config, noverrides, overrides);
    train_parts_close(&parts);
    return fits;
}

int train_check_job(struct boot *boot, const char *config, int noverrides, char *const *overrides,
                    bool verbose)
{
    const int code = train_check_nodes(boot, config, noverrides, overrides, verbose);

    if (code != LAUNCH_DONE || !config || boot_info(boot)->rank != 0 ||
        fits_here(boot, config, noverrides, overrides))
        return code;
    fprintf(stderr,
            "fsdp-launch: --check: %s: the run is planned to take more memory than there is\n",
            config);
    return LAUNCH_FAILED;
}
