/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses a bootstrap method, exchanges cards through it, and puts up the control tree. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "channel/tree.h"
#include "sys/boot_ops.h"

#define DEFAULT_METHODS "pmix,slurm,local,single"
#define CARD_KEY "card"
enum { CARD_VERSION = 2 };

struct boot {
    struct boot_info info;
    struct fsdp_node_map nodes;
    int *node_of;
    char (*hosts)[FSDP_HOST_NBYTES];
    const struct boot_ops *ops; /* NULL once closed */
    void *state;
    struct boot_tree *tree;
    struct fsdp_oob *alone; /* instead of a tree where there is one rank */
};

/* What every rank tells all others before the control tree stands. */
struct card {
    uint32_t version, nbytes;
    char host[FSDP_HOST_NBYTES];
    char node_key[160];
    struct boot_contact contact;
    char job[64];              /* rank 0's counts */
    struct boot_secret secret; /* of rank 0 where the method gives none */
    uint32_t reorder, count;   /* rank 0's counts */
};

/* ---- choosing a method ---- */

static const struct {
    const char *name;
    const struct boot_ops *ops; /* NULL: not in this build */
} methods[] = {
#if HAVE_PMIX
    {"pmix", &boot_pmix_ops},
#else
    {"pmix", NULL},
#endif
    {"slurm", &boot_slurm_ops},
    /* asked for by name alone */
    {"nodes", &boot_nodes_ops},
    {"local", &boot_local_ops},
    {"single", &boot_single_ops},
};
enum { NMETHODS = sizeof methods / sizeof methods[0] };

static void trace(const struct boot_opts *opts, const char *method, const char *text)
{
    fsdp_log(FSDP_LOG_DEBUG, "boot: %s: %s", method, text);
    if (opts->trace)
        opts->trace(opts->trace_ctx, method, text);
}

static int probe_one(const struct boot_ops **out, const char *name, char *why, size_t why_nbytes,
                     struct fsdp_err *err)
{
    for (int i = 0; i < NMETHODS; i++) {
        if (strcmp(methods[i].name, name) != 0)
            continue;
        if (!methods[i].ops)
            snprintf(why, why_nbytes, "this build has no PMIx (build with WITH_PMIX=1)");
        else if (methods[i].ops->probe(why, why_nbytes))
            *out = methods[i].ops;
        return FSDP_OK;
    }
    return fsdp_err_set(err, FSDP_EINVAL,
                        "unknown bootstrap method '%s'; there are: " DEFAULT_METHODS, name);
}

static int choose_method(const struct boot_ops **out, const struct boot_opts *opts,
                         struct fsdp_err *err)
{
    const char *order = opts->methods ? opts->methods : getenv("BOOT_METHODS");
    char list[128], reasons[900] = "", *save = NULL;

    *out = NULL;
    order = order && order[0] ? order : DEFAULT_METHODS;
    if (snprintf(list, sizeof list, "%s", order) >= (int)sizeof list)
        return fsdp_err_set(err, FSDP_EINVAL, "the list of bootstrap methods is too long");
    for (char *name = strtok_r(list, ", ", &save); name; name = strtok_r(NULL, ", ", &save)) {
        char why[BOOT_WHY_NBYTES] = "";
        size_t len = strlen(reasons);
        FSDP_TRY(probe_one(out, name, why, sizeof why, err));
        trace(opts, name, why);
        if (*out)
            return FSDP_OK;
        snprintf(reasons + len, sizeof reasons - len, "%s%s: %s", len ? "; " : "", name, why);
    }
    return fsdp_err_set(err, FSDP_EINVAL, "no way to meet the other ranks: %s", reasons);
}

/* ---- meeting ---- */

static int make_job(char out[64], const char *given, struct fsdp_err *err)
{
    uint32_t salt;
    if (given[0]) {
        snprintf(out, 64, "%s", given);
        return FSDP_OK;
    }
    FSDP_TRY(boot_random(&salt, sizeof salt, err));
    snprintf(out, 64, "fsdp-%d-%08x", (int)getpid(), salt);
    return FSDP_OK;
}

/* The job's name becomes part of file names. */
static void clean_name(char *text)
{
    for (; *text; text++)
        if (!isalnum((unsigned char)*text) && *text != '-' && *text != '_' && *text != '.')
            *text = '-';
}

static int fill_card(struct card *card, struct boot_facts *facts, struct boot_acceptor *acceptor,
                     const struct boot_opts *opts, struct fsdp_err *err)
{
    memset(card, 0, sizeof *card);
    card->reorder = opts->reorder;
    card->count = opts->count;
    card->version = CARD_VERSION;
    card->nbytes = sizeof *card;
    memcpy(card->host, facts->host, sizeof card->host);
    memcpy(card->node_key, facts->node_key, sizeof card->node_key);
    boot_acceptor_contact(acceptor, &card->contact);
    if (facts->rank == 0)
        FSDP_TRY(make_job(card->job, facts->job, err));
    if (facts->rank == 0 && !facts->has_secret) {
        FSDP_TRY(boot_secret_create(&facts->secret, err));
        card->secret = facts->secret;
    }
    return FSDP_OK;
}

static int exchange(struct card *cards, const struct card *mine, struct boot *boot, int size,
                    double deadline, struct fsdp_err *err)
{
    const struct boot_ops *ops = boot->ops;
    FSDP_TRY(ops->put(boot->state, CARD_KEY, mine, sizeof *mine, deadline, err));
    FSDP_TRY(ops->fence(boot->state, deadline, err));
    if (ops->get_all)
        FSDP_TRY(ops->get_all(boot->state, CARD_KEY, cards, sizeof *cards, deadline, err));
    boot->info.cost.ncalls = 2 + (ops->get_all ? 1 : size);
    for (int r = 0; r < size; r++) {
        struct card *card = &cards[r];
        if (!ops->get_all)
            FSDP_TRY(ops->get(boot->state, r, CARD_KEY, card, sizeof *card, deadline, err));
        if (card->version != CARD_VERSION || card->nbytes != sizeof *card)
            return fsdp_err_set(err, FSDP_EMISMATCH, "rank %d runs another version of this program",
                                r);
        card->host[sizeof card->host - 1] = 0;
        card->node_key[sizeof card->node_key - 1] = 0;
        card->job[sizeof card->job - 1] = 0;
        if (card->contact.naddrs > BOOT_MAX_ADDRS)
            return fsdp_err_set(err, FSDP_ECORRUPT, "rank %d sent a malformed card", r);
    }
    return FSDP_OK;
}

/* Renumbers the ranks so that those of a node are neighbours: nodes by their lowest rank, the ranks
 * of a node in their order. Rank 0 stays rank 0. */
static int group_by_node(struct card *cards, struct boot_facts *facts, struct fsdp_err *err)
{
    int size = facts->size, nplaced = 0, mine = 0;
    struct card *sorted = fsdp_alloc((size_t)size, sizeof *sorted, "boot cards", err);
    bool *placed = fsdp_alloc((size_t)size, sizeof *placed, "boot cards", err);
    int rc = sorted && placed ? FSDP_OK : FSDP_ENOMEM;

    for (int first = 0; rc == FSDP_OK && first < size; first++) {
        if (placed[first])
            continue;
        for (int r = first; r < size; r++) {
            if (strcmp(cards[r].node_key, cards[first].node_key) != 0)
                continue;
            mine = r == facts->rank ? nplaced : mine;
            sorted[nplaced++] = cards[r];
            placed[r] = true;
        }
    }
    if (rc == FSDP_OK) {
        memcpy(cards, sorted, (size_t)size * sizeof *cards);
        facts->rank = mine;
    }
    fsdp_free(sorted);
    fsdp_free(placed);
    return rc;
}

static enum fsdp_starter starter_of(const struct boot *boot)
{
    const char *method = boot->info.method;
    if (!strcmp(method, "local") || !strcmp(method, "single"))
        return FSDP_STARTED_HERE;
    return getenv("SLURM_STEP_ID") && !getenv("OMPI_COMM_WORLD_SIZE") ? FSDP_STARTED_BY_SRUN
                                                                      : FSDP_STARTED_BY_MPIRUN;
}

/* Nodes are numbered by their lowest rank. */
static int map_nodes(struct boot *boot, const struct card *cards, int size, struct fsdp_err *err)
{
    struct boot_info *info = &boot->info;
    if (!(boot->node_of = fsdp_alloc((size_t)size, sizeof *boot->node_of, "node map", err)) ||
        !(boot->hosts = fsdp_alloc((size_t)size, sizeof *boot->hosts, "host names", err)))
        return FSDP_ENOMEM;
    for (int r = 0; r < size; r++) {
        int same = 0;
        while (same < r && strcmp(cards[same].node_key, cards[r].node_key) != 0)
            same++;
        boot->node_of[r] = same < r ? boot->node_of[same] : info->nnodes++;
        memcpy(boot->hosts[r], cards[r].host, sizeof boot->hosts[r]);
    }
    info->node = boot->node_of[info->rank];
    for (int r = 0; r < size; r++)
        if (boot->node_of[r] == info->node) {
            info->local_rank += r < info->rank;
            info->local_size++;
        }
    boot->nodes = (struct fsdp_node_map){size, info->nnodes, boot->node_of,
                                         (const char(*)[FSDP_HOST_NBYTES])(const void *)boot->hosts,
                                         starter_of(boot)};
    return FSDP_OK;
}

static void last_words(void *ctx, int code, const char *text)
{
    struct boot *boot = ctx;
    if (boot->ops && boot->ops->abort)
        boot->ops->abort(boot->state, code, text);
}

/* Takes the acceptor. */
static int grow_tree(struct boot *boot, const struct card *cards, const struct boot_facts *facts,
                     struct boot_acceptor *acceptor, const struct boot_opts *opts, double deadline,
                     struct fsdp_err *err)
{
    struct boot_contact *contacts =
        fsdp_alloc((size_t)facts->size, sizeof *contacts, "boot contacts", err);
    struct boot_tree_opts tree = {.rank = facts->rank,
                                  .nodes = &boot->nodes,
                                  .contacts = contacts,
                                  .secret = facts->has_secret ? facts->secret : cards[0].secret,
                                  .wait_s = opts->wait_s,
                                  .on_words = last_words,
                                  .ctx = boot};
    if (!contacts) {
        boot_acceptor_destroy(acceptor);
        return FSDP_ENOMEM;
    }
    for (int r = 0; r < facts->size; r++)
        contacts[r] = cards[r].contact;
    boot_acceptor_set_secret(acceptor, &tree.secret);
    int rc = boot_tree_create(&boot->tree, &tree, acceptor, deadline, err);
    fsdp_free(contacts);
    return rc;
}

/* What meeting has cost; the counting itself is not counted. */
static int count_cost(struct boot *boot, double began, struct fsdp_err *err)
{
    uint64_t mine = boot_messages_so_far();
    uint64_t *all = fsdp_alloc((size_t)boot->info.size, sizeof *all, "messages", err);
    struct fsdp_oob *oob = boot_oob(boot);

    boot->info.cost.seconds = fsdp_time_now() - began;
    int rc = fsdp_oob_agree(oob, all ? FSDP_OK : FSDP_ENOMEM, err);
    if (rc == FSDP_OK)
        rc = oob->allgather(oob, &mine, sizeof mine, all, err);
    for (int r = 0; rc == FSDP_OK && r < boot->info.size; r++) {
        uint64_t *to = r ? &boot->info.cost.most : &boot->info.cost.root;
        *to = all[r] > *to ? all[r] : *to;
    }
    fsdp_free(all);
    return rc;
}

static int meet_others(struct boot *boot, struct boot_facts *facts, const struct boot_opts *opts,
                       double deadline, struct fsdp_err *err)
{
    const double began = deadline - opts->timeout_s;
    struct boot_acceptor *acceptor = NULL;
    struct card mine, *cards = fsdp_alloc((size_t)facts->size, sizeof *cards, "boot cards", err);
    int rc = FSDP_ENOMEM;

    if (!cards)
        return rc;
    FSDP_TRY_GOTO(boot_acceptor_create(&acceptor, &facts->secret, facts->loopback, 0, err), out);
    FSDP_TRY_GOTO(fill_card(&mine, facts, acceptor, opts, err), out);
    FSDP_TRY_GOTO(exchange(cards, &mine, boot, facts->size, deadline, err), out);
    if (cards[0].reorder)
        FSDP_TRY_GOTO(group_by_node(cards, facts, err), out);
    boot->info.rank = facts->rank;
    FSDP_TRY_GOTO(map_nodes(boot, cards, facts->size, err), out);
    memcpy(boot->info.job, cards[0].job, sizeof boot->info.job);
    rc = grow_tree(boot, cards, facts, acceptor, opts, deadline, err);
    acceptor = NULL;
    if (rc == FSDP_OK && cards[0].count)
        rc = count_cost(boot, began, err);
out:
    boot_acceptor_destroy(acceptor);
    fsdp_free(cards);
    return rc;
}

static int stay_alone(struct boot *boot, const struct boot_facts *facts, struct fsdp_err *err)
{
    struct card mine = {0};
    memcpy(mine.host, facts->host, sizeof mine.host);
    FSDP_TRY(make_job(boot->info.job, facts->job, err));
    FSDP_TRY(map_nodes(boot, &mine, 1, err));
    return fsdp_oob_self_create(&boot->alone, err);
}

static int check_opts(const struct boot_opts *opts, struct fsdp_err *err)
{
    if (opts->version != BOOT_OPTS_VERSION)
        return fsdp_err_set(err, FSDP_EINVAL, "boot_open: options of version %u, expected %d",
                            opts->version, BOOT_OPTS_VERSION);
    if (!(opts->timeout_s > 0) || !(opts->wait_s > 0))
        return fsdp_err_set(err, FSDP_EINVAL, "boot_open: timeouts must be above 0");
    return FSDP_OK;
}

int boot_open(struct boot **out, const struct boot_opts *opts, struct fsdp_err *err)
{
    static const struct boot_opts defaults = BOOT_OPTS_INIT;
    struct boot_facts facts = {0};
    struct boot *boot = NULL;
    const struct boot_ops *ops;
    int rc;

    opts = opts ? opts : &defaults;
    FSDP_TRY(check_opts(opts, err));
    double deadline = fsdp_time_now() + opts->timeout_s;
    FSDP_TRY(choose_method(&ops, opts, err));
    if (!(boot = fsdp_alloc(1, sizeof *boot, "boot", err)))
        return FSDP_ENOMEM;
    FSDP_TRY_GOTO(ops->open(&boot->state, deadline, err), out);
    boot->ops = ops;
    ops->info(boot->state, &facts);
    boot->info.rank = facts.rank;
    boot->info.size = facts.size;
    memcpy(boot->info.host, facts.host, sizeof boot->info.host);
    snprintf(boot->info.method, sizeof boot->info.method, "%s", ops->name);
    clean_name(facts.job);
    rc = facts.size == 1 ? stay_alone(boot, &facts, err)
                         : meet_others(boot, &facts, opts, deadline, err);
    if (rc)
        goto out;
    if (!ops->abort && !opts->keep) { /* the tree stands: the introducer has done its work */
        ops->close(boot->state, true);
        boot->ops = NULL;
    }
    *out = boot;
    return FSDP_OK;
out:
    if (boot->ops && !boot->tree)
        last_words(boot, 1, err ? err->text : "bootstrap failed");
    if (boot->ops)
        boot->ops->close(boot->state, false);
    boot->ops = NULL;
    boot_close(boot);
    return rc;
}

void boot_close(struct boot *boot)
{
    if (!boot)
        return;
    boot_tree_close(boot->tree);
    if (boot->alone)
        boot->alone->close(boot->alone);
    if (boot->ops)
        boot->ops->close(boot->state, true);
    fsdp_free(boot->node_of);
    fsdp_free(boot->hosts);
    fsdp_free(boot);
}

const struct boot_info *boot_info(const struct boot *boot)
{
    return &boot->info;
}

const struct fsdp_node_map *boot_nodes(const struct boot *boot)
{
    return &boot->nodes;
}

struct fsdp_oob *boot_oob(struct boot *boot)
{
    return boot->tree ? boot_tree_oob(boot->tree) : boot->alone;
}
