/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that do not mean the same run are told so before it starts, by the first line that differs
 * and by rank; and a rank without memory tells what would help.
 */
#include <sys/resource.h>

#include "core/create/settings.h"
#include "fsdp/sys/device_ops.h"
#include "given.h"
#include "ranks.h"
#include "tap.h"

enum { NRANKS = 3, ODD = 2 }; /* the rank that differs */

static const char *version = FSDP_VERSION_STRING;

/* In the library's place: what a rank with another library says. */
const char *fsdp_version(void)
{
    return version;
}

struct difference {
    const char *what, *expect; /* in the error */
    void (*make)(struct fsdp_opts *opts, struct given *model);
};

/* ---- differences ----------------------------------------------------------------------------- */

static void wrapping(struct fsdp_opts *opts, struct given *model)
{
    (void)model;
    opts->wrap_policy = FSDP_WRAP_NONE;
}

static void order(struct fsdp_opts *opts, struct given *model)
{
    static const uint64_t shapes[2][2] = {{5, 6}, {6, 0}};
    struct fsdp_init init = {FSDP_INIT_NORMAL, 1.0f};
    (void)opts;
    fsdp_module_tree_destroy(model->tree);
    if (fsdp_module_tree_create(&model->tree, NULL) ||
        fsdp_module_add(model->tree, -1, "", "Model", &model->root, NULL) ||
        fsdp_module_add_param(
            model->tree, 0,
            &(struct fsdp_param_desc){
                .name = given_names[0], .ndim = 1, .shape = (uint64_t[]){7}, .init = init},
            NULL, NULL))
        abort();
    for (int i = 0; i < 2; i++) { /* b before w in the second block */
        int module;
        if (fsdp_module_add(model->tree, 0, i ? "blocks.1" : "blocks.0", "Block", &module, NULL))
            abort();
        for (int k = 0; k < 2; k++) {
            int which = i ? !k : k;
            if (fsdp_module_add_param(
                    model->tree, module,
                    &(struct fsdp_param_desc){.name = given_names[1 + 2 * i + which],
                                              .ndim = which ? 1 : 2,
                                              .shape = shapes[which],
                                              .init = init},
                    NULL, NULL))
                abort();
        }
    }
}

static void dtype(struct fsdp_opts *opts, struct given *model)
{
    (void)model;
    opts->param_dtype = FSDP_BF16;
}

static void strategy(struct fsdp_opts *opts, struct given *model)
{
    (void)model;
    opts->sharding_strategy = FSDP_SHARD_GRAD_OP;
}

static void seed(struct fsdp_opts *opts, struct given *model)
{
    (void)model;
    opts->seed = 43;
}

static void data(struct fsdp_opts *opts, struct given *model)
{
    (void)model;
    opts->agree = "train.steps = 10\ndata.hash = 2";
}

static void library(struct fsdp_opts *opts, struct given *model)
{
    (void)opts;
    (void)model;
    version = "0.0.9";
}

static void groups(struct fsdp_opts *opts, struct given *model)
{
    static const struct fsdp_optim_group group = {"*.b", 0.5, -1, {-1, -1}, ""};
    (void)model;
    opts->optim.groups = &group;
    opts->optim.ngroups = 1;
}

static void freezing(struct fsdp_opts *opts, struct given *model)
{
    static const char *const names[] = {"scale", NULL};
    (void)model;
    opts->frozen = names;
}

static void clipping(struct fsdp_opts *opts, struct given *model)
{
    (void)model;
    opts->optim.clip_norm_type = FSDP_NORM_INF;
}

static const struct difference differences[] = {
    {"wrapping", "unit ''", wrapping},
    {"order of parameters", "parameter blocks.1.b", order},
    {"dtype", "fsdp.param_dtype", dtype},
    {"strategy", "fsdp.sharding_strategy", strategy},
    {"seed", "model.seed", seed},
    {"data", "data.hash", data},
    {"library version", "libfsdp version", library},
    {"parameter groups", "parameter group 1", groups},
    {"frozen parameters", "frozen", freezing},
    {"norm to clip by", "optim.clip_norm_type", clipping},
};

/* ---- running --------------------------------------------------------------------------------- */

struct job {
    struct fsdp_device *device;
    struct fsdp_mesh *mesh;
    struct given model;
    struct fsdp_opts opts;
};

static int job_open(struct job *j, struct fsdp_oob *oob, const struct fsdp_node_map *nodes,
                    struct fsdp_err *err)
{
    static const char *const classes[] = {"Block", NULL};
    struct fsdp_mesh_shape shape;
    given_make(&j->model);
    j->opts = (struct fsdp_opts)FSDP_OPTS_INIT;
    j->opts.wrap_classes = classes;
    j->opts.seed = 42;
    j->opts.agree = "train.steps = 10\ndata.hash = 1";
    FSDP_TRY(fsdp_device_open(&j->device, "cpu", 0, err));
    FSDP_TRY(fsdp_mesh_shape_for(&shape, FSDP_FULL_SHARD, 0, nodes, err));
    return fsdp_mesh_create(&j->mesh, shape, "auto", 20, nodes, oob, j->device, err);
}

static void job_close(struct job *j)
{
    fsdp_mesh_destroy(j->mesh);
    fsdp_device_close(j->device);
    fsdp_module_tree_destroy(j->model.tree);
}

static int disagree(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    const struct difference *d = arg;
    struct fsdp_err err = FSDP_ERR_INIT;
    struct job j;
    struct fsdp *f = NULL;

    if (job_open(&j, oob, nodes, &err))
        return 1;
    if (oob->rank == ODD)
        d->make(&j.opts, &j.model);
    int rc = fsdp_create(&f, j.model.tree, &j.opts, j.device, j.mesh, &err);
    bool good = rc == FSDP_EMISMATCH && strstr(err.text, "rank 2") && strstr(err.text, d->expect);
    if (!good)
        fprintf(stderr, "rank %d: rc %d, '%s'\n", oob->rank, rc, err.text);
    job_close(&j);
    return !good;
}

/* ---- every setting, from the table ----------------------------------------------------------- */

/* Another value, with which an engine can be made. */
static void change(const struct setting *row, struct fsdp_opts *opts)
{
    static const char *const texts[2] = {"sgd", "/tmp"};
    void *at = (char *)opts + row->offset;

    switch (row->type) {
    case SETTING_INT:
    case SETTING_STRATEGY:
        *(int *)at += 1;
        break;
    case SETTING_BOOL:
        *(bool *)at = !*(bool *)at;
        break;
    case SETTING_UINT64:
    case SETTING_GIB:
        *(uint64_t *)at += 1;
        break;
    case SETTING_DOUBLE:
    case SETTING_DOUBLES: /* which remains below 1 where it was */
        *(double *)at = *(double *)at / 2 + 0.2;
        break;
    case SETTING_TEXT:
    case SETTING_NAME:
        *(const char **)at = texts[row->agreement == SETTING_OWN];
        break;
    case SETTING_DTYPE:
        *(int *)at = *(int *)at == FSDP_BF16 ? FSDP_F32 : FSDP_BF16;
        break;
    case SETTING_WORD:
        *(int *)at = !*(int *)at;
        break;
    case SETTING_WRAP_POLICY:
    case SETTING_CODEC:
    case SETTING_POINTER:
        break;
    }
}

/* Two ranks, the second of which has another value in this row. */
static int change_one(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    const struct setting *row = arg;
    struct fsdp_err err = FSDP_ERR_INIT;
    struct job j;
    struct fsdp *f = NULL;
    char line[64];

    if (job_open(&j, oob, nodes, &err))
        return 1;
    j.opts.param_dtype = FSDP_BF16; /* so that masters can be split */
    j.opts.memory_limit = UINT64_C(1) << 40;
    j.opts.optim.clip_grad_norm = 0; /* so that updates can be at reduce */
    if (!strcmp(row->name, "optim.clip_late"))
        j.opts.update_at = FSDP_UPDATE_AT_REDUCE;
    if (row->agreement == SETTING_OWN) {
        j.opts.offload = FSDP_OFFLOAD_OPTIMIZER;
        j.opts.offload_dir = ".";
    }
    if (oob->rank == 1)
        change(row, &j.opts);
    int rc = fsdp_create(&f, j.model.tree, &j.opts, j.device, j.mesh, &err);
    snprintf(line, sizeof line, "'%s = ", row->name);
    bool good = row->agreement == SETTING_OWN
                    ? rc == FSDP_OK
                    : rc == FSDP_EMISMATCH && strstr(err.text, "rank 1") && strstr(err.text, line);
    if (!good)
        fprintf(stderr, "rank %d: rc %d, '%s'\n", oob->rank, rc, err.text);
    if (rc == FSDP_OK)
        fsdp_destroy(f);
    job_close(&j);
    return !good;
}

static void test_settings(void)
{
    for (const struct setting *row = setting_table; row < setting_table + setting_nrows; row++)
        if (row->agreement != SETTING_BY_OUTCOME)
            ok(ranks_run(2, 1, 30, change_one, (void *)(uintptr_t)row, NULL) == 0,
               row->agreement == SETTING_OWN
                   ? "%s may differ between ranks"
                   : "ranks that differ in %s are refused, and it is named",
               row->name);
}

static size_t aligned(size_t offset, size_t to)
{
    return (offset + to - 1) / to * to;
}

static int by_offset(const void *a, const void *b)
{
    const struct setting *x = a, *y = b;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

/* A field that has no row would lie between two rows that are not neighbours. */
static void test_no_field_is_forgotten(void)
{
    const size_t optim = offsetof(struct fsdp_opts, optim.name);
    const size_t scaler = offsetof(struct fsdp_opts, loss_scale);
    struct setting rows[64];
    size_t at = sizeof(uint32_t); /* after the version */

    memcpy(rows, setting_table, (size_t)setting_nrows * sizeof *rows);
    qsort(rows, (size_t)setting_nrows, sizeof *rows, by_offset);
    for (const struct setting *row = rows; row < rows + setting_nrows; row++) {
        size_t nbytes = setting_nbytes(row->type), align = nbytes;
        if (row->offset == optim)
            at = aligned(at, sizeof(double)) + sizeof(uint32_t); /* its version */
        if (row->offset == scaler || align > sizeof(double))
            align = sizeof(double);
        ok(row->offset == aligned(at, align), "%s follows the field of the row before", row->name);
        at = row->offset + nbytes;
    }
    ok(at == offsetof(struct fsdp_opts, agree), "the last row is the last setting");
}

/* A program without a configuration begins with the same values as one with an empty one. */
static void test_defaults_are_one(void)
{
    for (const struct setting *row = setting_table; row < setting_table + setting_nrows; row++) {
        struct fsdp_opts init = FSDP_OPTS_INIT, taken = FSDP_OPTS_INIT;
        struct fsdp_tunable key = {row->name, row->kind, row->def, "", row->allowed, 0};
        union {
            double align;
            char bytes[FSDP_TUNABLE_LIST_NBYTES + 64];
        } value;
        struct fsdp_err err = FSDP_ERR_INIT;

        if (!row->def)
            continue;
        memset((char *)&taken + row->offset, 0x55, setting_nbytes(row->type));
        bool good = fsdp_tunable_defaults(&key, 1, &value, &err) == FSDP_OK &&
                    fsdp_opts_take(&taken, &key, &value, &err) == FSDP_OK;
        const void *a = (char *)&taken + row->offset, *b = (char *)&init + row->offset;
        if (row->type == SETTING_NAME)
            good &= !strcmp(*(const char *const *)b, row->def);
        else if (row->type == SETTING_TEXT)
            good &= !**(const char *const *)a && !*(const char *const *)b;
        else if (row->type != SETTING_POINTER)
            good &= !memcmp(a, b, setting_nbytes(row->type));
        ok(good, "%s: FSDP_OPTS_INIT has the default, %s%s", row->name, row->def, err.text);
    }
}

/* A word's position is its constant: FSDP_SETTINGS and the enums are in one order. */
static void test_words_are_constants(void)
{
    static const struct {
        const char *key, *word;
        int constant;
    } words[] = {
        {"optim.decay", "all", FSDP_DECAY_ALL},
        {"optim.decay", "matrices", FSDP_DECAY_MATRICES},
        {"optim.clip_norm_type", "2", FSDP_NORM_2},
        {"optim.clip_norm_type", "inf", FSDP_NORM_INF},
        {"optim.master", "whole", FSDP_MASTER_WHOLE},
        {"optim.master", "split", FSDP_MASTER_SPLIT},
        {"optim.master", "none", FSDP_MASTER_NONE},
        {"fsdp.update_at", "step", FSDP_UPDATE_AT_STEP},
        {"fsdp.update_at", "reduce", FSDP_UPDATE_AT_REDUCE},
        {"fsdp.update_at", "forward", FSDP_UPDATE_AT_FORWARD},
        {"fsdp.offload", "none", FSDP_OFFLOAD_NONE},
        {"fsdp.offload", "optimizer", FSDP_OFFLOAD_OPTIMIZER},
        {"fsdp.offload", "params", FSDP_OFFLOAD_PARAMS},
        {"fsdp.offload_update", "auto", FSDP_OFFLOAD_UPDATE_AUTO},
        {"fsdp.offload_update", "device", FSDP_OFFLOAD_UPDATE_DEVICE},
        {"fsdp.offload_update", "host", FSDP_OFFLOAD_UPDATE_HOST},
        {"fsdp.activation_checkpointing", "none", FSDP_AC_NONE},
        {"fsdp.activation_checkpointing", "full", FSDP_AC_FULL},
        {"fsdp.activation_checkpointing", "selective", FSDP_AC_SELECTIVE},
        {"fsdp.loss_scale", "auto", FSDP_SCALER_AUTO},
        {"fsdp.loss_scale", "true", FSDP_SCALER_ON},
        {"fsdp.loss_scale", "false", FSDP_SCALER_OFF},
    };
    enum { NWORDS = sizeof words / sizeof words[0] };
    int nwords = 0;

    for (const struct setting *row = setting_table; row < setting_table + setting_nrows; row++) {
        if (row->type != SETTING_WORD)
            continue;
        nwords++;
        for (const char *at = row->allowed; (at = strchr(at, '|')); at++)
            nwords++;
        for (int w = 0; w < NWORDS; w++) {
            const struct fsdp_tunable key = {row->name, row->kind, row->def, "", row->allowed, 0};
            struct fsdp_opts opts = FSDP_OPTS_INIT;
            struct fsdp_err err = FSDP_ERR_INIT;
            int index = -1;
            if (strcmp(words[w].key, row->name) != 0)
                continue;
            ok(!fsdp_tunable_set(&key, 1, &index, "test", row->name, words[w].word, &err) &&
                   !fsdp_opts_take(&opts, &key, &index, &err) &&
                   *(int *)(void *)((char *)&opts + row->offset) == words[w].constant,
               "%s: %s%s", row->name, words[w].word, err.text);
        }
    }
    ok(nwords == NWORDS, "all words are compared");
}

/* ---- memory ---------------------------------------------------------------------------------- */

static char logged[8192];

static void keep_log(void *ctx, enum fsdp_log_level level, const char *text)
{
    size_t len = strlen(logged);
    (void)ctx;
    if (level == FSDP_LOG_ERROR)
        snprintf(logged + len, sizeof logged - len, "%s\n", text);
}

enum shortage { LIMITED, NO_ADDRESS_SPACE };

static bool advised(const struct fsdp_err *err, int rank, int teller)
{
    bool good = strstr(err->text, "the plan of a rank is") && strstr(err->text, "saves") &&
                strstr(err->text, "activation_checkpointing full") &&
                err->of_other == (rank != teller);
    if (rank != teller)
        return good && strstr(err->text, "rank ") && !*logged;
    return good && strstr(logged, "optimizer state") && strstr(logged, "in all") &&
           strstr(logged, "param_dtype bfloat16") && strstr(logged, "reduce_dtype bfloat16") &&
           strstr(logged, "half the rows in a micro-batch") && strstr(logged, "twice the ranks") &&
           strstr(logged, "reshard_after_forward true") &&
           strstr(logged, "offload optimizer, to files (offload_dir)");
}

/* Blocks with large weights and activations. */
static void add_blocks(struct job *j)
{
    struct fsdp_act_bytes act = {.saved = 16 << 20, .recomputed = 192 << 20, .work = 1 << 20};
    struct fsdp_init init = {FSDP_INIT_ZEROS, 0};
    uint64_t shape[2] = {2048, 4096};
    for (int i = 2; i < 5; i++) {
        char name[32];
        int module;
        snprintf(name, sizeof name, "blocks.%d", i);
        if (fsdp_module_add(j->model.tree, 0, name, "Block", &module, NULL))
            abort();
        snprintf(name, sizeof name, "blocks.%d.large", i);
        if (fsdp_module_add_param(
                j->model.tree, module,
                &(struct fsdp_param_desc){.name = name, .ndim = 2, .shape = shape, .init = init},
                NULL, NULL) ||
            fsdp_module_set_act(j->model.tree, module, act, NULL))
            abort();
    }
}

/* On a rank that has no room for them. */
static int run_short(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    enum shortage shortage = *(enum shortage *)arg;
    const struct rlimit little = {256 << 20, 256 << 20};
    int teller = shortage == LIMITED ? 0 : ODD;
    struct fsdp_err err = FSDP_ERR_INIT;
    struct fsdp *f = NULL;
    struct job j;

    if (job_open(&j, oob, nodes, &err))
        return 1;
    add_blocks(&j);
    j.opts.sharding_strategy = FSDP_SHARD_GRAD_OP;
    fsdp_log_set(keep_log, NULL, FSDP_LOG_ERROR);
    if (shortage == LIMITED)
        j.opts.memory_limit = 100 << 20;
    else if (oob->rank == ODD && setrlimit(RLIMIT_AS, &little))
        return 1;
    int rc = fsdp_create(&f, j.model.tree, &j.opts, j.device, j.mesh, &err);
    bool good = rc == FSDP_ENOMEM && advised(&err, oob->rank, teller);
    if (!good)
        fprintf(stderr, "rank %d: rc %d, '%s'\n%s", oob->rank, rc, err.text, logged);
    job_close(&j);
    return !good;
}

static void *refuse(void *state, size_t nbytes, const char *name, struct fsdp_err *err)
{
    (void)state;
    fsdp_err_set(err, FSDP_ENOMEM, "%s: %zu bytes of page-locked host memory", name, nbytes);
    return NULL;
}

/* A device with memory enough, and a host that has none for what is offloaded: files would help. */
static int run_poor_host(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    struct fsdp_device_ops poor = fsdp_device_cpu_ops;
    struct fsdp_device *device = NULL;
    struct fsdp_err err = FSDP_ERR_INIT;
    struct fsdp *f = NULL;
    struct job j;

    (void)arg;
    poor.is_host = false;
    poor.host_alloc = refuse;
    if (job_open(&j, oob, nodes, &err) || fsdp_device_open_ops(&device, &poor, 0, 0, &err))
        return 1;
    add_blocks(&j);
    j.opts.offload = FSDP_OFFLOAD_OPTIMIZER;
    fsdp_log_set(keep_log, NULL, FSDP_LOG_ERROR);
    int rc = fsdp_create(&f, j.model.tree, &j.opts, device, j.mesh, &err);
    bool good = rc == FSDP_ENOMEM && strstr(err.text, "of host memory; ") &&
                strstr(err.text, "offload optimizer, to files (offload_dir) saves") &&
                !strstr(err.text, "activation_checkpointing") &&
                (oob->rank ||
                 (strstr(logged, "state offloaded to the host") && !strstr(logged, "activations")));
    if (!good)
        fprintf(stderr, "rank %d: rc %d, '%s'\n%s", oob->rank, rc, err.text, logged);
    fsdp_device_close(device);
    job_close(&j);
    return !good;
}

int main(void)
{
    for (size_t i = 0; i < sizeof differences / sizeof differences[0]; i++)
        ok(ranks_run(NRANKS, 1, 30, disagree, (void *)(uintptr_t)&differences[i], NULL) == 0,
           "a rank with another %s is named on every rank, and the line that differs",
           differences[i].what);
    test_settings();
    test_no_field_is_forgotten();
    test_defaults_are_one();
    test_words_are_constants();
    enum shortage shortages[] = {LIMITED, NO_ADDRESS_SPACE};
    /* On two nodes: on one, whole parameters would be no copies. */
    ok(ranks_run(NRANKS, 2, 30, run_short, &shortages[0], NULL) == 0,
       "beyond memory_limit: every rank learns what saves most, one logs the plan");
    ok(ranks_run(NRANKS, 1, 30, run_poor_host, NULL, NULL) == 0,
       "where it is the host that lacks memory, files are what helps");
    if (getenv("TEST_SANITIZER"))
        tap_skip("a process under a sanitizer cannot live in little address space");
    else if (tap_emulated())
        tap_skip("an emulated process cannot live in little address space");
    else
        ok(ranks_run(NRANKS, 2, 30, run_short, &shortages[1], NULL) == 0,
           "a rank whose memory the system refuses tells the others");
    return tap_done();
}
