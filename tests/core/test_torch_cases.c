/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs that PyTorch's FSDP2 made (tests/interop/torch_cases.py writes the files and describes
 * them), repeated under every strategy: weights after every step, gradient norms, and the
 * optimizer's state after the last.
 */
#include <dirent.h>
#include <sys/mman.h>

#include "../models/ref_files.h"
#include "given.h"
#include "ranks.h"
#include "tap.h"

enum { MAX_STEPS = 8, MAX_GROUPS = 4 };

static const char *const state_keys[] = {"exp_avg", "exp_avg_sq", "momentum_buffer", "ema"};
enum { NSTATES = sizeof state_keys / sizeof state_keys[0] };

struct torch_case {
    char name[64];
    struct ref_tensors tensors;
    json_t *spec;
    int steps, accumulation;
    const float *init, *given, *param, *norm, *state[NSTATES];
};

enum { NRANKS = 2 };

static double number(const struct torch_case *c, const char *key, double absent)
{
    const json_t *value = json_object_get(c->spec, key);
    return value ? json_number_value(value) : absent;
}

static bool case_open(struct torch_case *c, const char *file)
{
    memset(c, 0, sizeof *c);
    snprintf(c->name, sizeof c->name, "%.*s", (int)strcspn(file, "."), file);
    c->tensors = ref_tensors_open(ref_path("torch-cases", file));
    const json_t *meta = json_object_get(c->tensors.header, "__metadata__");
    c->spec = json_loads(json_string_value(json_object_get(meta, "case")), 0, NULL);
    c->steps = (int)number(c, "steps", 0);
    c->accumulation = (int)number(c, "accumulation", 0);
    uint64_t nelem = GIVEN_NELEM, steps = (uint64_t)c->steps;
    uint64_t given = steps * NRANKS * (uint64_t)c->accumulation * nelem;
    c->init = ref_tensor(&c->tensors, "init", nelem);
    c->given = ref_tensor(&c->tensors, "given", given);
    c->param = ref_tensor(&c->tensors, "param", steps * nelem);
    c->norm = ref_tensor(&c->tensors, "norm", steps);
    for (int k = 0; k < NSTATES; k++)
        c->state[k] = ref_tensor(&c->tensors, state_keys[k], nelem);
    return c->steps > 0 && c->steps <= MAX_STEPS && c->init && c->given && c->param && c->norm;
}

static void case_close(struct torch_case *c)
{
    json_decref(c->spec);
    ref_tensors_close(&c->tensors);
}

/* ---- our run ------------------------------------------------------------------------------------
 */

struct outcome {
    float param[MAX_STEPS][GIVEN_NELEM], norm[MAX_STEPS], state[NSTATES][GIVEN_NELEM];
};

struct run {
    const struct torch_case *c;
    enum fsdp_strategy strategy;
    enum fsdp_wrap_policy wrap;
    struct outcome *out; /* shared by the ranks */
};

static int set_optim(struct fsdp_optim_opts *o, struct fsdp_optim_group groups[MAX_GROUPS],
                     const struct torch_case *c, struct fsdp_err *err)
{
    const json_t *betas = json_object_get(c->spec, "betas");
    const json_t *list = json_object_get(c->spec, "groups");
    const char *norm = json_string_value(json_object_get(c->spec, "clip_norm_type"));

    o->name = json_string_value(json_object_get(c->spec, "optimizer"));
    o->beta1 = betas ? json_number_value(json_array_get(betas, 0)) : 0.9;
    o->beta2 = betas ? json_number_value(json_array_get(betas, 1)) : 0.999;
    o->weight_decay = number(c, "weight_decay", 0);
    o->decay = FSDP_DECAY_ALL;
    o->momentum = number(c, "momentum", 0);
    o->dampening = number(c, "dampening", 0);
    o->nesterov = json_is_true(json_object_get(c->spec, "nesterov"));
    o->clip_grad_norm = number(c, "clip_grad_norm", 0);
    o->clip_norm = norm && !strcmp(norm, "inf") ? FSDP_NORM_INF : FSDP_NORM_2;
    o->ema_decay = number(c, "ema_decay", 0);
    o->groups = groups;
    o->ngroups = (int)json_array_size(list);
    for (int g = 0; g < o->ngroups && g < MAX_GROUPS; g++)
        FSDP_TRY(fsdp_optim_group_parse(&groups[g],
                                        json_string_value(json_array_get(list, (size_t)g)),
                                        number(c, "lr", 0), err));
    return FSDP_OK;
}

static int train(struct run *run, const struct given *model, struct fsdp *f, int rank,
                 struct fsdp_err *err)
{
    const struct torch_case *c = run->c;
    float scale = 1.0f / (float)(NRANKS * c->accumulation);

    FSDP_TRY(given_load_params(f, c->init, err));
    for (int step = 0; step < c->steps; step++) {
        struct fsdp_step_args args = {.step = step, .lr = number(c, "lr", 0)};
        struct fsdp_step_result result;
        for (int micro = 0; micro < c->accumulation; micro++) {
            int at = (step * NRANKS + rank) * c->accumulation + micro;
            FSDP_TRY(given_micro(model, f, micro, c->given + (size_t)at * GIVEN_NELEM, scale, err));
        }
        FSDP_TRY(fsdp_step(f, &args, &result, err));
        run->out->norm[step] = result.grad_norm;
        FSDP_TRY(given_read(f, "", run->out->param[step], err));
    }
    for (int k = 0; k < NSTATES; k++)
        FSDP_TRY(given_read(f, state_keys[k], run->out->state[k], err));
    return FSDP_OK;
}

static int rank_main(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    static const char *const classes[] = {"Block", NULL};
    struct run *run = arg;
    struct fsdp_err err = FSDP_ERR_INIT;
    struct fsdp_opts opts = FSDP_OPTS_INIT;
    struct fsdp_optim_group groups[MAX_GROUPS];
    struct fsdp_device *device = NULL;
    struct fsdp_mesh_shape shape;
    struct fsdp_mesh *mesh = NULL;
    struct fsdp *f = NULL;
    struct given model;
    int rc;

    given_make(&model);
    opts.strategy = run->strategy;
    opts.wrap_policy = run->wrap;
    opts.wrap_classes = classes;
    opts.accumulation = run->c->accumulation;
    if ((rc = set_optim(&opts.optim, groups, run->c, &err)) ||
        (rc = fsdp_device_open(&device, "cpu", 0, &err)) ||
        (rc = fsdp_mesh_shape_for(&shape, run->strategy, 0, nodes, &err)) ||
        (rc = fsdp_mesh_create(&mesh, shape, "auto", 20, nodes, oob, device, &err)) ||
        (rc = fsdp_create(&f, model.tree, &opts, device, mesh, &err)) ||
        (rc = train(run, &model, f, oob->rank, &err)))
        fprintf(stderr, "rank %d: %s\n", oob->rank, err.text);
    fsdp_destroy(f);
    fsdp_mesh_destroy(mesh);
    fsdp_device_close(device);
    fsdp_module_tree_destroy(model.tree);
    return rc != 0;
}

/* ---- comparing ----------------------------------------------------------------------------------
 */

/* Largest difference, relative where the wanted value is large. */
static double worst(const float *got, const float *want, int nelem)
{
    double most = 0;
    for (int i = 0; i < nelem; i++) {
        double bad = fabs((double)got[i] - (double)want[i]) / fmax(1, fabs((double)want[i]));
        most = bad <= most ? most : bad;
    }
    return most;
}

static void compare(const struct torch_case *c, const struct outcome *got, const char *what)
{
    double params = 0, norms = worst(got->norm, c->norm, c->steps), states = 0;
    for (int s = 0; s < c->steps; s++)
        params = fmax(params, worst(got->param[s], c->param + s * GIVEN_NELEM, GIVEN_NELEM));
    for (int k = 0; k < NSTATES; k++)
        if (c->state[k])
            states = fmax(states, worst(got->state[k], c->state[k], GIVEN_NELEM));
    ok(params <= 1e-6 && norms <= 1e-6 && states <= 1e-6,
       "%s: weights differ by %.1e, norms by %.1e, optimizer state by %.1e", what, params, norms,
       states);
}

static void run_case(const struct torch_case *c)
{
    static const enum fsdp_strategy strategies[] = {FSDP_FULL_SHARD, FSDP_SHARD_GRAD_OP,
                                                    FSDP_NO_SHARD, FSDP_HYBRID_SHARD, FSDP_ZERO1};
    for (size_t i = 0; i < sizeof strategies / sizeof strategies[0]; i++) {
        struct run run = {.c = c,
                          .strategy = strategies[i],
                          .wrap = i % 2 ? FSDP_WRAP_NONE : FSDP_WRAP_TRANSFORMER};
        bool hybrid = strategies[i] == FSDP_HYBRID_SHARD;
        char what[96];
        snprintf(what, sizeof what, "%s, %s", c->name, fsdp_strategy_name(strategies[i]));
        run.out =
            mmap(NULL, sizeof *run.out, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (ok(ranks_run(NRANKS, hybrid ? 2 : 1, 60, rank_main, &run, NULL) == 0, "%s: runs", what))
            compare(c, run.out, what);
        munmap(run.out, sizeof *run.out);
    }
}

static int is_case(const struct dirent *entry)
{
    return strstr(entry->d_name, ".safetensors") != NULL;
}

int main(void)
{
    struct dirent **list;
    int ncases = scandir(ref_path("torch-cases", ""), &list, is_case, alphasort);

    ok(ncases >= 9, "%d cases of PyTorch", ncases);
    for (int i = 0; i < ncases; i++) {
        struct torch_case c;
        if (ok(case_open(&c, list[i]->d_name), "%s can be read", list[i]->d_name))
            run_case(&c);
        case_close(&c);
        free(list[i]);
    }
    free(list);
    return tap_done();
}
