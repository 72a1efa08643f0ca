/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What fsdp_plan says is what an engine is: hash, lists and memory under settings drawn at random
 * (PLAN_SEED chooses others), on 1 to 4 ranks. And a device that is described is good for that
 * alone.
 */
#include "toy.h"
#include "toy_clock.h"

enum { NDRAWS = 50, NWORLDS = 6, MAX_ROWS = 40 };

/* ---- settings -------------------------------------------------------------------------------- */

static uint32_t draw(uint64_t *state, uint32_t below)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33) % below;
}

struct setting {
    struct fsdp_opts opts;
    struct fsdp_optim_group group;
    int shard_size;
    bool two_level, odd;
    char overrides[256];
    struct fsdp_unit_override list[2];
};

static void draw_optimizer(struct setting *s, uint64_t *seed)
{
    static const char *const names[] = {"adamw", "adam", "adamw8bit", "adafactor",
                                        "lion",  "muon", "sgd",       "schedulefree"};
    struct fsdp_optim_opts *o = &s->opts.optim;
    const bool bf16 = s->opts.param_dtype == FSDP_BF16;

    o->name = names[draw(seed, 4) ? draw(seed, 2) : draw(seed, 8)];
    o->moment_dtype =
        !strncmp(o->name, "adam", 4) && strlen(o->name) < 6 && draw(seed, 2) ? FSDP_BF16 : FSDP_F32;
    o->master = bf16 && draw(seed, 3) == 0 ? (draw(seed, 2) ? FSDP_MASTER_SPLIT : FSDP_MASTER_NONE)
                                           : FSDP_MASTER_WHOLE;
    o->clip_grad_norm = draw(seed, 2);
    o->clip_norm_type = draw(seed, 3) ? FSDP_NORM_2 : FSDP_NORM_INF;
    o->ema_decay = draw(seed, 4) ? 0 : 0.99;
}

static void draw_setting(struct setting *s, uint64_t *seed, int nranks)
{
    static const char *const classes[] = {"Block", NULL};
    static const char *const modules[] = {"block.0", "block.2", "embed", NULL};
    static const char *const frozen[] = {"block.1.*", NULL};
    static const enum fsdp_dtype types[] = {FSDP_F32, FSDP_BF16, FSDP_F16};
    static const char *const overrides[] = {"block.1 param_dtype=float32",
                                            "block.0 reshard_after_forward=false",
                                            "class=Block reduce_dtype=bfloat16"};
    struct fsdp_opts *o = &s->opts;

    *s = (struct setting){.opts = FSDP_OPTS_INIT};
    o->sharding_strategy = (enum fsdp_strategy)draw(seed, FSDP_NSTRATEGIES);
    o->reshard_after_forward = draw(seed, 2) ? -1 : (int)draw(seed, 3);
    o->wrap_policy = (enum fsdp_wrap_policy)draw(seed, FSDP_WRAP_CALLBACK);
    o->wrap_classes = classes;
    o->wrap_modules = modules;
    o->min_num_params = 20 + draw(seed, 60);
    o->param_dtype = types[draw(seed, 3)];
    o->reduce_dtype = types[draw(seed, 2)];
    o->grad_dtype = draw(seed, 4) ? FSDP_F32 : FSDP_BF16;
    o->accumulation = 1 + (int)draw(seed, 4);
    o->reduce_last = draw(seed, 2);
    o->forward_prefetch = (int)draw(seed, 4);
    o->backward_prefetch = (int)draw(seed, 4);
    o->limit_all_gathers = (int)draw(seed, 5);
    o->grad_buffers = 1 + (int)draw(seed, 3);
    o->activation_checkpointing = (int)draw(seed, 3);
    o->offload = (enum fsdp_offload)draw(seed, 3);
    const uint32_t places = draw(seed, 6);
    o->offload_slots = 1 + (int)(places % 3);
    o->offload_activations = places >= 3;
    o->offload_gradients = places == 1 || places == 3;
    if (o->offload != FSDP_OFFLOAD_NONE && draw(seed, 2))
        o->offload_dir = ".";
    if (o->offload != FSDP_OFFLOAD_NONE && o->offload_gradients && draw(seed, 3) == 0)
        o->offload_update = FSDP_OFFLOAD_UPDATE_HOST;
    if (draw(seed, 4) == 0)
        o->frozen = frozen;
    o->agree = draw(seed, 2) ? "data = these\n" : NULL;
    draw_optimizer(s, seed);
    o->update_at = (enum fsdp_update_at)draw(seed, 3); /* some are refused, by both */
    if (o->update_at == FSDP_UPDATE_AT_REDUCE)
        o->optim.clip_late = draw(seed, 2);
    s->shard_size = draw(seed, 3) ? 0 : 1 + (int)draw(seed, (uint32_t)nranks);
    s->two_level = draw(seed, 2);
    s->odd = draw(seed, 2);
    if (draw(seed, 3) == 0) {
        snprintf(s->overrides, sizeof s->overrides, "%s", overrides[draw(seed, 3)]);
        if (fsdp_unit_override_parse(&s->list[0], s->overrides, NULL) == FSDP_OK) {
            o->unit_overrides = s->list;
            o->nunit_overrides = 1;
        }
    }
}

static int shape_for(struct fsdp_mesh_shape *shape, const struct setting *s,
                     const struct fsdp_node_map *nodes, struct fsdp_err *err)
{
    const int regather = fsdp_opts_regather_size(&s->opts);

    FSDP_TRY(fsdp_mesh_shape_for(shape, s->opts.sharding_strategy, s->shard_size, nodes, err));
    if (regather)
        FSDP_TRY(fsdp_mesh_shape_regather(shape, regather, err));
    return s->two_level ? fsdp_mesh_shape_two_level(shape, nodes, err) : FSDP_OK;
}

/* ---- two engines alike ----------------------------------------------------------------------- */

/* Both lists as text, to be freed. */
static char *list_of(const struct fsdp *f)
{
    const struct fsdp_clock clock = toy_clock(1000);
    char *text = NULL;
    size_t nbytes;
    FILE *to = open_memstream(&text, &nbytes);

    if (to && fsdp_schedule_print(f, &clock, to, NULL) == FSDP_OK && fclose(to) == 0)
        return text;
    return NULL;
}

/* NULL, or what differs. */
static const char *difference(const struct fsdp *a, const struct fsdp *b)
{
    struct fsdp_memory_row rows[2][MAX_ROWS];
    const int n = fsdp_memory_plan(a, rows[0], MAX_ROWS);

    if (fsdp_plan_hash(a) != fsdp_plan_hash(b) || !fsdp_plan_hash(a))
        return "the hash";
    if (fsdp_memory_plan(b, rows[1], MAX_ROWS) != n || n > MAX_ROWS)
        return "the number of rows of memory";
    for (int i = 0; i < n; i++)
        if (strcmp(rows[0][i].what, rows[1][i].what) || rows[0][i].nbytes != rows[1][i].nbytes ||
            rows[0][i].host != rows[1][i].host || rows[0][i].file != rows[1][i].file)
            return rows[0][i].what;
    char *lists[] = {list_of(a), list_of(b)};
    const bool same = lists[0] && lists[1] && !strcmp(lists[0], lists[1]);
    free(lists[0]);
    free(lists[1]);
    return same ? NULL : "the list";
}

struct world {
    int nranks, nnodes;
    uint64_t seed;
    int *nmade, *nrefused; /* shared: engines alike, and settings that both refuse */
};

static int create_engine_of(struct fsdp **f, struct fsdp_mesh **mesh, const struct setting *s,
                            const struct toy *toy, struct fsdp_device *device,
                            const struct fsdp_node_map *nodes, struct fsdp_oob *oob,
                            struct fsdp_err *err)
{
    struct fsdp_mesh_shape shape;

    FSDP_TRY(shape_for(&shape, s, nodes, err));
    FSDP_TRY(fsdp_mesh_create(mesh, shape, "auto", 60, nodes, oob, device, err));
    return fsdp_create(f, toy->tree, &s->opts, device, *mesh, err);
}

static int plan_of(struct fsdp **f, const struct setting *s, const struct toy *toy,
                   struct fsdp_device *device, const struct fsdp_node_map *nodes,
                   struct fsdp_err *err)
{
    struct fsdp_mesh_shape shape;

    FSDP_TRY(shape_for(&shape, s, nodes, err));
    return fsdp_plan(f, toy->tree, &s->opts, device, shape, err);
}

/* 0: alike; 1: both refuse it; -1: they differ. */
static int compare_setting(const struct setting *s, struct fsdp_oob *oob,
                           const struct fsdp_node_map *nodes)
{
    struct fsdp_err err = FSDP_ERR_INIT, why = FSDP_ERR_INIT;
    struct fsdp_device *device = NULL, *described = NULL;
    struct fsdp *engine = NULL, *plan = NULL;
    struct fsdp_mesh *mesh = NULL;
    struct toy toy;
    const char *differs = NULL;

    toy_make_widths(&toy, s->odd);
    if (fsdp_device_open(&device, "cpu", 0, &err) || fsdp_device_describe(&described, "cpu", &err))
        return -1;
    const int rc = create_engine_of(&engine, &mesh, s, &toy, device, nodes, oob, &err);
    const int planned = plan_of(&plan, s, &toy, described, nodes, &why);
    if (rc == FSDP_OK && planned == FSDP_OK)
        differs = difference(engine, plan);
    if (differs || rc != planned)
        diag("rank %d of %d, %s: %s%s; engine: %s; plan: %s", oob->rank, oob->size,
             fsdp_strategy_name(s->opts.sharding_strategy), differs ? "they differ in " : "status",
             differs ? differs : "", err.text, why.text);
    fsdp_destroy(plan);
    fsdp_destroy(engine);
    fsdp_mesh_destroy(mesh);
    fsdp_device_close(described);
    fsdp_device_close(device);
    fsdp_module_tree_destroy(toy.tree);
    return differs || rc != planned ? -1 : rc != FSDP_OK;
}

static int compare_rank(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    const struct world *w = arg;
    uint64_t seed = w->seed;
    int nbad = 0;

    for (int i = 0; i < NDRAWS; i++) {
        struct setting s;
        draw_setting(&s, &seed, w->nranks);
        const int outcome = compare_setting(&s, oob, nodes);
        nbad += outcome < 0;
        if (oob->rank == 0)
            ++*(outcome == 1 ? w->nrefused : w->nmade);
    }
    return nbad != 0;
}

static void test_settings(void)
{
    static const int worlds[NWORLDS][2] = {{1, 1}, {2, 1}, {3, 1}, {4, 1}, {4, 2}, {2, 2}};
    const char *text = getenv("PLAN_SEED");
    int *counts =
        mmap(NULL, 2 * sizeof *counts, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    for (int i = 0; i < NWORLDS; i++) {
        struct world w = {.nranks = worlds[i][0],
                          .nnodes = worlds[i][1],
                          .seed = (uint64_t)(text ? atoi(text) : 1) * 1000 + (uint64_t)i,
                          .nmade = &counts[0],
                          .nrefused = &counts[1]};
        ok(ranks_run(w.nranks, w.nnodes, 200, compare_rank, &w, NULL) == 0,
           "%d settings on %d ranks of %d nodes: plan and engine are alike", NDRAWS, w.nranks,
           w.nnodes);
    }
    ok(counts[0] >= 100, "%d engines were made and compared, %d settings were refused by both",
       counts[0], counts[1]);
    munmap(counts, 2 * sizeof *counts);
}

/* ---- described devices ----------------------------------------------------------------------- */

static int create_on_described(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    struct setting s = {.opts = FSDP_OPTS_INIT};
    struct fsdp_err err = FSDP_ERR_INIT;
    struct fsdp_device *device = NULL;
    struct fsdp_mesh *mesh = NULL;
    struct fsdp *f = NULL;
    struct toy toy;

    (void)arg;
    toy_make(&toy);
    if (fsdp_device_describe(&device, "cuda", &err))
        return 1;
    const int rc = create_engine_of(&f, &mesh, &s, &toy, device, nodes, oob, &err);
    const bool good = rc == FSDP_EINVAL && strstr(err.text, "good for fsdp_plan alone");
    if (!good)
        diag("%s: %s", fsdp_status_name(rc), err.text);
    fsdp_destroy(f);
    fsdp_mesh_destroy(mesh);
    fsdp_device_close(device);
    fsdp_module_tree_destroy(toy.tree);
    return !good;
}

static void test_kinds(void)
{
    static const struct {
        const char *kind, *name;
        bool is_host;
        int capability;
    } kinds[] = {
        {"cpu", "cpu", true, 0}, {"cuda", "cuda", false, 90}, {"sm_80", "cuda", false, 80}};
    static const char *const unknown[] = {"tpu", "cuda:0", "auto", "sm_", "sm_80x", "sm_-8", ""};
    struct fsdp_err err = FSDP_ERR_INIT;
    struct fsdp_device *d = NULL;
    int capability = -1;

    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        const int rc = fsdp_device_describe(&d, kinds[i].kind, &err);
        ok(!rc && fsdp_device_is_described(d, &capability) && capability == kinds[i].capability &&
               !strcmp(fsdp_device_name(d), kinds[i].name) &&
               fsdp_device_is_host(d) == kinds[i].is_host,
           "%s is described", kinds[i].kind);
        ok(!fsdp_device_alloc(d, 64, "weights", &err) && err.status == FSDP_EUNSUPPORTED &&
               strstr(err.text, "weights: 64 bytes") && !fsdp_host_alloc(d, 64, "weights", &err),
           "it refuses memory: %s", err.text);
        fsdp_device_close(d);
    }
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++)
        ok(fsdp_device_describe(&d, unknown[i], &err) == FSDP_EUNSUPPORTED &&
               strstr(err.text, "use cpu, cuda, or sm_80"),
           "'%s' is refused", unknown[i]);
    if (!fsdp_device_open(&d, "cpu", 0, &err)) {
        ok(!fsdp_device_is_described(d, &capability) && capability == 0, "an opened one is not");
        fsdp_device_close(d);
    }
    ok(ranks_run(1, 1, 60, create_on_described, NULL, NULL) == 0,
       "no engine is created on a device that is described");
}

int main(void)
{
    test_kinds();
    test_settings();
    return tap_done();
}
