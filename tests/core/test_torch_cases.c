/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs that PyTorch's FSDP made (tests/interop/torch_cases.py writes the files and describes
 * them), repeated under every strategy: weights after every step, gradient norms, loss scales, and
 * the optimizer's state after the last.
 */
#include <dirent.h>
#include <sys/mman.h>

#include "../models/ref_files.h"
#include "given.h"
#include "ranks.h"
#include "tap.h"

enum { MAX_STEPS = 8, MAX_LIST = 4 };

static const char *const state_keys[] = {"exp_avg", "exp_avg_sq", "momentum_buffer", "z", "ema"};
enum { NSTATES = sizeof state_keys / sizeof state_keys[0] };

struct torch_case {
    char name[64];
    struct ref_tensors tensors;
    json_t *spec;
    int steps, accumulation;
    const float *init, *given, *param, *norm, *state[NSTATES];
    const float *scale, *summoned; /* NULL where there are none */
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
    c->scale = ref_tensor(&c->tensors, "scale", steps);
    c->summoned = ref_tensor(&c->tensors, "summoned", 2 * nelem);
    return c->steps > 0 && c->steps <= MAX_STEPS && c->init && c->given && c->param && c->norm;
}

static void case_close(struct torch_case *c)
{
    json_decref(c->spec);
    ref_tensors_close(&c->tensors);
}

/* ---- our run --------------------------------------------------------------------------------- */

struct outcome {
    float param[MAX_STEPS][GIVEN_NELEM], norm[MAX_STEPS], state[NSTATES][GIVEN_NELEM];
    float scale[MAX_STEPS], summoned[2][GIVEN_NELEM];
};

struct run {
    const struct torch_case *c;
    enum fsdp_strategy strategy;
    enum fsdp_wrap_policy wrap;
    struct outcome *out; /* shared by the ranks */
};

/* What the options of a run point into. */
struct lists {
    struct fsdp_optim_group groups[MAX_LIST];
    struct fsdp_unit_override overrides[MAX_LIST];
    char texts[MAX_LIST][128];
    const char *frozen[MAX_LIST + 1];
};

static int set_optim(struct fsdp_optim_opts *o, struct fsdp_optim_group groups[MAX_LIST],
                     const struct torch_case *c, struct fsdp_err *err)
{
    const json_t *betas = json_object_get(c->spec, "betas");
    const json_t *list = json_object_get(c->spec, "groups");
    const char *norm = json_string_value(json_object_get(c->spec, "clip_norm_type"));

    o->name = json_string_value(json_object_get(c->spec, "optimizer"));
    o->betas[0] = betas ? json_number_value(json_array_get(betas, 0)) : 0.9;
    o->betas[1] = betas ? json_number_value(json_array_get(betas, 1)) : 0.999;
    o->weight_decay = number(c, "weight_decay", 0);
    o->decay = FSDP_DECAY_ALL;
    o->momentum = number(c, "momentum", 0);
    o->dampening = number(c, "dampening", 0);
    o->nesterov = json_is_true(json_object_get(c->spec, "nesterov"));
    o->clip_grad_norm = number(c, "clip_grad_norm", 0);
    o->clip_norm_type = norm && !strcmp(norm, "inf") ? FSDP_NORM_INF : FSDP_NORM_2;
    o->ema_decay = number(c, "ema_decay", 0);
    o->groups = groups;
    o->ngroups = (int)json_array_size(list);
    for (int g = 0; g < o->ngroups && g < MAX_LIST; g++)
        FSDP_TRY(fsdp_optim_group_parse(&groups[g],
                                        json_string_value(json_array_get(list, (size_t)g)),
                                        number(c, "lr", 0), err));
    return FSDP_OK;
}

static int set_dtype(enum fsdp_dtype *out, const struct torch_case *c, const char *key,
                     struct fsdp_err *err)
{
    const char *text = json_string_value(json_object_get(c->spec, key));
    return text ? fsdp_dtype_parse(out, text, err) : FSDP_OK;
}

static int set_opts(struct fsdp_opts *o, struct lists *lists, const struct torch_case *c,
                    struct fsdp_err *err)
{
    const json_t *frozen = json_object_get(c->spec, "frozen");
    const json_t *overrides = json_object_get(c->spec, "overrides");
    const json_t *scaler = json_object_get(c->spec, "scaler");

    o->accumulation = c->accumulation;
    for (size_t i = 0; i < json_array_size(frozen); i++)
        lists->frozen[i] = json_string_value(json_array_get(frozen, i));
    o->frozen = lists->frozen;
    o->nunit_overrides = (int)json_array_size(overrides);
    o->unit_overrides = lists->overrides;
    for (int i = 0; i < o->nunit_overrides; i++) {
        snprintf(lists->texts[i], sizeof lists->texts[i], "%s",
                 json_string_value(json_array_get(overrides, (size_t)i)));
        FSDP_TRY(fsdp_unit_override_parse(&lists->overrides[i], lists->texts[i], err));
    }
    o->loss_scale.mode = scaler ? FSDP_SCALER_ON : FSDP_SCALER_OFF;
    if (scaler) {
        o->loss_scale.init = json_number_value(json_object_get(scaler, "init"));
        o->loss_scale.growth = json_number_value(json_object_get(scaler, "growth"));
        o->loss_scale.backoff = json_number_value(json_object_get(scaler, "backoff"));
        o->loss_scale.interval = (int)json_integer_value(json_object_get(scaler, "interval"));
    }
    FSDP_TRY(set_dtype(&o->param_dtype, c, "param_dtype", err));
    FSDP_TRY(set_dtype(&o->reduce_dtype, c, "reduce_dtype", err));
    return set_optim(&o->optim, lists->groups, c, err);
}

static bool is_unused(const struct torch_case *c, int step, int rank)
{
    const json_t *list = json_object_get(c->spec, "unused");
    for (size_t i = 0; i < json_array_size(list); i++)
        if (json_integer_value(json_array_get(json_array_get(list, i), 0)) == step &&
            json_integer_value(json_array_get(json_array_get(list, i), 1)) == rank)
            return true;
    return false;
}

static int keep(void *ctx, const struct fsdp_full_param *param, struct fsdp_err *err)
{
    struct run *run = ctx;
    size_t nbytes = fsdp_tensor_nelem(&param->tensor) * sizeof(float);
    (void)err;
    memcpy(&run->out->summoned[0][given_start[param->param]], param->value, nbytes);
    memcpy(&run->out->summoned[1][given_start[param->param]], param->grad, nbytes);
    return FSDP_OK;
}

static int twice(void *ctx, const struct fsdp_full_param *param, struct fsdp_err *err)
{
    (void)ctx;
    (void)err;
    for (uint64_t i = 0; i < fsdp_tensor_nelem(&param->tensor); i++)
        param->value[i] *= 2;
    return FSDP_OK;
}

/* Before the optimizer: rank 0 alone sees weights and gradients; then one unit is doubled. */
static int summon(struct run *run, const struct given *model, struct fsdp *f, struct fsdp_err *err)
{
    struct fsdp_full_opts opts = FSDP_FULL_OPTS_INIT;
    opts.with_grads = opts.rank0_only = true;
    FSDP_TRY(fsdp_full_params(f, &opts, keep, run, err));
    opts.with_grads = opts.rank0_only = false;
    opts.writeback = true;
    opts.module = model->block[0];
    return fsdp_full_params(f, &opts, twice, NULL, err);
}

static int train(struct run *run, struct given *model, struct fsdp *f, int rank,
                 struct fsdp_err *err)
{
    const struct torch_case *c = run->c;
    float scale = 1.0f / (float)(number(c, "factor", NRANKS) * c->accumulation);
    static enum fsdp_dtype sent;

    FSDP_TRY(given_load_params(f, c->init, err));
    if (json_object_get(c->spec, "hook")) {
        FSDP_TRY(set_dtype(&sent, c, "hook", err));
        FSDP_TRY(fsdp_reduce_hook_set(f, fsdp_compress_hook, &sent, 2, err));
    }
    for (int step = 0; step < c->steps; step++) {
        struct fsdp_step_args args = {.step = step, .lr = number(c, "lr", 0)};
        struct fsdp_step_result result;
        model->skip = is_unused(c, step, rank) ? 3 : -1;
        for (int micro = 0; micro < c->accumulation; micro++) {
            int at = (step * NRANKS + rank) * c->accumulation + micro;
            FSDP_TRY(given_micro(model, f, micro, c->given + (size_t)at * GIVEN_NELEM, scale, err));
        }
        if (step == (int)number(c, "summon", -1))
            FSDP_TRY(summon(run, model, f, err));
        FSDP_TRY(fsdp_step(f, &args, &result, err));
        run->out->norm[step] = result.grad_norm;
        run->out->scale[step] = result.loss_scale;
        FSDP_TRY(given_read(f, "", run->out->param[step], err));
    }
    for (int k = 0; k < NSTATES; k++)
        FSDP_TRY(given_read(f, state_keys[k], run->out->state[k], err));
    return FSDP_OK;
}

static int rank_main(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    struct run *run = arg;
    struct fsdp_err err = FSDP_ERR_INIT;
    struct fsdp_opts opts = FSDP_OPTS_INIT;
    struct lists lists = {0};
    struct given_engine engine = {.device = NULL};
    struct given model;

    given_make_tied(&model, json_is_true(json_object_get(run->c->spec, "tied")));
    opts.sharding_strategy = run->strategy;
    opts.wrap_policy = run->wrap;
    const struct given_where where = {.device = ranks_device()};
    int rc = set_opts(&opts, &lists, run->c, &err);
    if (!rc)
        rc = given_open(&engine, &model, &opts, &where, nodes, oob, &err);
    if (!rc)
        rc = train(run, &model, engine.f, oob->rank, &err);
    return given_close(&engine, &model, oob->rank, rc, &err);
}

/* ---- comparing ------------------------------------------------------------------------------- */

/* Largest difference, relative where the wanted value is large. Equal infinities are equal, and so
 * are values that are not finite in other ways. */
static double worst(const float *got, const float *want, int nelem)
{
    double most = 0;
    for (int i = 0; i < nelem; i++) {
        double bad = fabs((double)got[i] - (double)want[i]) / fmax(1, fabs((double)want[i]));
        if (!isfinite(got[i]) && !isfinite(want[i]))
            continue;
        most = bad <= most ? most : bad;
    }
    return most;
}

static void compare(const struct torch_case *c, struct outcome *got, const char *what)
{
    double tolerance = number(c, "tolerance", 1e-6);
    double params = 0, norms = worst(got->norm, c->norm, c->steps), states = 0;
    bool tied = json_is_true(json_object_get(c->spec, "tied"));
    for (int s = 0; s < c->steps; s++) {
        if (tied)
            memcpy(&got->param[s][given_start[3]], &got->param[s][given_start[1]],
                   30 * sizeof(float));
        params = fmax(params, worst(got->param[s], c->param + s * GIVEN_NELEM, GIVEN_NELEM));
    }
    for (int k = 0; k < NSTATES; k++)
        if (c->state[k])
            states = fmax(states, worst(got->state[k], c->state[k], GIVEN_NELEM));
    ok(params <= tolerance && norms <= tolerance && states <= tolerance,
       "%s: weights differ by %.1e, norms by %.1e, optimizer state by %.1e", what, params, norms,
       states);
    if (c->scale)
        ok(worst(got->scale, c->scale, c->steps) == 0, "%s: loss scales", what);
    if (c->summoned)
        ok(worst(got->summoned[0], c->summoned, 2 * GIVEN_NELEM) <= tolerance,
           "%s: summoned weights and gradients", what);
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

    ok(ncases >= 26, "%d cases of PyTorch", ncases);
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
