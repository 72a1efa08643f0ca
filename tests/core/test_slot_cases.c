/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Optimizers that need more than an element at a time: steps of the reference
 * implementations (tests/interop/slot_cases.py writes the files and describes them), repeated on
 * several meshes. Row lengths, numbers of rows and of ranks have few common divisors. Rank 0 alone
 * has a gradient, so that its sum is the same to the bit on every mesh.
 */
#include <sys/mman.h>

#include "../models/ref_files.h"
#include "fsdp/fsdp.h"
#include "ranks.h"
#include "tap.h"

enum { NPARAMS = 4, NELEM = 5200 + 4160 + 1440 + 6, MAX_STATE = 4, STATE_ROOM = 8192 };
static const struct fsdp_tensor params[NPARAMS] = {{"embed", FSDP_F32, 2, {40, 130}},
                                                   {"up", FSDP_F32, 2, {65, 64}},
                                                   {"experts", FSDP_F32, 3, {3, 20, 24}},
                                                   {"bias", FSDP_F32, 1, {6}}};
static const char *const state_names[] = {"exp_avg",  "exp_avg_sq",     "state1",  "state2",
                                          "absmax1",  "absmax2",        "row_var", "col_var",
                                          "variance", "momentum_buffer"};
enum { NSTATES = sizeof state_names / sizeof state_names[0] };

struct outcome {
    float param[NPARAMS][STATE_ROOM];
    float state[NPARAMS][NSTATES][STATE_ROOM];
    uint64_t nelem[NPARAMS][NSTATES]; /* of the state's tensor; 0: there is none */
};

struct run {
    const char *name;
    const json_t *spec;
    enum fsdp_strategy strategy;
    enum fsdp_offload offload;
    struct outcome *out; /* shared by the ranks */
};

/* As number() in slot_cases.py. */
static void fill_numbers(float *to, int p, int stream)
{
    const uint64_t first = (uint64_t)p * 100003 + (uint64_t)stream * 7919;

    for (uint64_t i = 0; i < fsdp_tensor_nelem(&params[p]); i++) {
        uint64_t mixed = (i + first) * UINT64_C(2654435761) % (UINT64_C(1) << 32);
        mixed = (mixed ^ mixed >> 15) * UINT64_C(2246822519) % (UINT64_C(1) << 32);
        to[i] = ((float)(mixed >> 9) / (float)(1 << 23) - 0.5f) / (float)(1 << i % 5);
    }
}

/* ---- a run ----------------------------------------------------------------------------------- */

struct grad_arg {
    float *grad;
    int p, stream; /* 0: zeros */
};

static int write_grad(void *arg, struct fsdp_err *err)
{
    const struct grad_arg *a = arg;
    (void)err;
    if (a->stream)
        fill_numbers(a->grad, a->p, a->stream);
    else
        memset(a->grad, 0, fsdp_tensor_nelem(&params[a->p]) * sizeof *a->grad);
    return FSDP_OK;
}

static int step_once(struct fsdp *f, const int *index, int root, int step, double lr, int rank,
                     struct fsdp_err *err)
{
    const struct fsdp_step_args args = {.step = step, .lr = lr};
    struct fsdp_view view;

    FSDP_TRY(fsdp_micro_begin(f, FSDP_TRAIN, 0, err));
    FSDP_TRY(fsdp_module_enter(f, root, FSDP_FORWARD, &view, err));
    FSDP_TRY(fsdp_module_leave(f, root, FSDP_FORWARD, err));
    FSDP_TRY(fsdp_module_enter(f, root, FSDP_BACKWARD, &view, err));
    for (int p = 0; p < NPARAMS; p++) {
        struct grad_arg arg = {view.grad[index[p]], p, rank == 0 ? step + 1 : 0};
        fsdp_view_grad_beta(&view, index[p]); /* it is written, all of it */
        FSDP_TRY(fsdp_lane_call(view.lane, write_grad, &arg, sizeof arg, err));
    }
    FSDP_TRY(fsdp_module_leave(f, root, FSDP_BACKWARD, err));
    FSDP_TRY(fsdp_micro_end(f, err));
    return fsdp_step(f, &args, NULL, err);
}

static int find_param(const char *name, size_t len)
{
    for (int p = 0; p < NPARAMS; p++)
        if (strlen(params[p].name) == len && !strncmp(params[p].name, name, len))
            return p;
    abort();
}

static int find_state(const char *name)
{
    for (int k = 0; k < NSTATES; k++)
        if (!strcmp(state_names[k], name))
            return k;
    abort();
}

/* Weights are written first, and read at the end with all that is kept. */
struct visit {
    struct run *run;
    bool write;
};

static int visit_weights(const struct visit *v, int p, uint64_t at, uint64_t nelem,
                         const struct fsdp_slice_io *io, struct fsdp_err *err)
{
    static float values[STATE_ROOM];

    if (!v->write)
        return io->read(io->ctx, 0, &v->run->out->param[p][at], nelem * sizeof(float), err);
    fill_numbers(values, p, 0);
    return io->write(io->ctx, 0, values + at, nelem * sizeof(float), err);
}

static int visit_state(const struct visit *v, const char *name, uint64_t at, uint64_t nelem,
                       const struct fsdp_slice *slice, const struct fsdp_slice_io *io,
                       struct fsdp_err *err)
{
    const char *dot = strrchr(name, '.');
    const int p = find_param(name + 6, (size_t)(dot - name) - 6), k = find_state(dot + 1);
    float *to = &v->run->out->state[p][k][at];
    uint8_t codes[STATE_ROOM];

    if (v->write)
        return FSDP_OK;
    v->run->out->nelem[p][k] = fsdp_tensor_nelem(&slice->tensor);
    if (slice->tensor.dtype != FSDP_U8)
        return io->read(io->ctx, 0, to, nelem * sizeof(float), err);
    FSDP_TRY(io->read(io->ctx, 0, codes, nelem, err));
    for (uint64_t i = 0; i < nelem; i++)
        to[i] = codes[i];
    return FSDP_OK;
}

static int visit_slice(void *ctx, enum fsdp_slice_kind kind, const struct fsdp_slice *slice,
                       const struct fsdp_slice_io *io, struct fsdp_err *err)
{
    const uint64_t nelem = fsdp_box_nelem(&slice->box, slice->tensor.ndim);
    const uint64_t at = slice->box.offset[0] * fsdp_tensor_row_nelem(&slice->tensor);
    const char *name = slice->tensor.name;

    if (!nelem)
        return FSDP_OK;
    if (kind == FSDP_SLICE_OPTIM)
        return visit_state(ctx, name, at, nelem, slice, io, err);
    return visit_weights(ctx, find_param(name, strlen(name)), at, nelem, io, err);
}

static int train(struct run *run, struct fsdp *f, const int *index, int root, int rank,
                 struct fsdp_err *err)
{
    struct visit visit = {run, true};

    FSDP_TRY(fsdp_state_each(f, visit_slice, &visit, err));
    FSDP_TRY(fsdp_state_loaded(f, err));
    for (int step = 0; step < (int)json_integer_value(json_object_get(run->spec, "steps")); step++)
        FSDP_TRY(step_once(f, index, root, step,
                           json_number_value(json_object_get(run->spec, "lr")), rank, err));
    FSDP_TRY(fsdp_sync(f, err));
    visit.write = false;
    return fsdp_state_each(f, visit_slice, &visit, err);
}

static void make_tree(struct fsdp_module_tree **tree, int *index, int *root)
{
    if (fsdp_module_tree_create(tree, NULL) || fsdp_module_add(*tree, -1, "", "Model", root, NULL))
        abort();
    for (int p = 0; p < NPARAMS; p++)
        if (fsdp_module_add_param(*tree, *root,
                                  &(struct fsdp_param_desc){.name = params[p].name,
                                                            .ndim = params[p].ndim,
                                                            .shape = params[p].shape,
                                                            .init = {FSDP_INIT_NORMAL, 1.0f}},
                                  &index[p], NULL))
            abort();
}

static void set_opts(struct fsdp_opts *opts, const struct run *run)
{
    const json_t *betas = json_object_get(run->spec, "betas");

    opts->sharding_strategy = run->strategy;
    opts->offload = run->offload;
    opts->wrap_policy = FSDP_WRAP_NONE;
    opts->accumulation = 1;
    opts->loss_scale.mode = FSDP_SCALER_OFF;
    opts->optim.name = run->name;
    opts->optim.betas[0] = json_number_value(json_array_get(betas, 0));
    opts->optim.betas[1] = json_number_value(json_array_get(betas, 1));
    opts->optim.weight_decay = json_number_value(json_object_get(run->spec, "weight_decay"));
    opts->optim.decay = FSDP_DECAY_ALL;
    opts->optim.momentum = json_number_value(json_object_get(run->spec, "momentum"));
    opts->optim.nesterov = json_is_true(json_object_get(run->spec, "nesterov"));
    opts->optim.clip_grad_norm = 0;
}

static int rank_main(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    struct run *run = arg;
    struct fsdp_err err = FSDP_ERR_INIT;
    struct fsdp_opts opts = FSDP_OPTS_INIT;
    struct fsdp_module_tree *tree;
    struct fsdp_device *device = NULL;
    struct fsdp_mesh *mesh = NULL;
    struct fsdp_mesh_shape shape;
    struct fsdp *f = NULL;
    int index[NPARAMS], root;

    make_tree(&tree, index, &root);
    set_opts(&opts, run);
    int rc = fsdp_device_open(&device, "cpu", 0, &err);
    rc = rc ? rc : fsdp_mesh_shape_for(&shape, opts.sharding_strategy, 0, nodes, &err);
    rc = rc ? rc : fsdp_mesh_create(&mesh, shape, "auto", 20, nodes, oob, device, &err);
    rc = rc ? rc : fsdp_create(&f, tree, &opts, device, mesh, &err);
    rc = rc ? rc : train(run, f, index, root, oob->rank, &err);
    if (rc)
        fprintf(stderr, "rank %d: %s\n", oob->rank, err.text);
    fsdp_destroy(f);
    fsdp_mesh_destroy(mesh);
    fsdp_device_close(device);
    fsdp_module_tree_destroy(tree);
    return rc != 0;
}

/* ---- comparing ------------------------------------------------------------------------------- */

/* Largest difference, relative where the wanted value is large; 1e9 where there is none to compare.
 */
static double worst(const float *got, const float *want, uint64_t nelem)
{
    double most = want ? 0 : 1e9;
    for (uint64_t i = 0; want && i < nelem; i++)
        most = fmax(most, fabs((double)got[i] - (double)want[i]) / fmax(1, fabs((double)want[i])));
    return most;
}

static int count_flips(const float *got, const float *want, uint64_t nelem)
{
    int flips = want ? 0 : (int)nelem;
    for (uint64_t i = 0; want && i < nelem; i++)
        flips += got[i] != want[i];
    return flips;
}

/* A number between two codes may round to either: that code differs by one, and few do. */
static void compare_reference(const struct run *run, const struct ref_tensors *ref)
{
    double weights = 0, states = 0;
    int flips = 0, nstates = 0;

    for (int p = 0; p < NPARAMS; p++) {
        const uint64_t nelem = fsdp_tensor_nelem(&params[p]);
        weights =
            fmax(weights, worst(run->out->param[p], ref_tensor(ref, params[p].name, nelem), nelem));
        for (int k = 0; k < NSTATES; k++) {
            char name[64];
            const uint64_t count = run->out->nelem[p][k];
            snprintf(name, sizeof name, "state.%s.%s", params[p].name, state_names[k]);
            if (!count)
                continue;
            nstates++;
            const float *want = ref_tensor(ref, name, count);
            if (!strcmp(state_names[k], "state1") || !strcmp(state_names[k], "state2"))
                flips += count_flips(run->out->state[p][k], want, count);
            else
                states = fmax(states, worst(run->out->state[p][k], want, count));
        }
    }
    ok(weights <= 1e-6 && states <= 1e-6 && flips <= 4 &&
           nstates == (int)json_object_size(ref->header) - 1 - NPARAMS,
       "%s against the reference: weights differ by %.1e, %d states by %.1e, %d codes", run->name,
       weights, nstates, states, flips);
}

static struct outcome *run_on(struct run *run, int nranks, int nnodes)
{
    run->out =
        mmap(NULL, sizeof *run->out, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ok(ranks_run(nranks, nnodes, 60, rank_main, run, NULL) == 0, "%s: %d ranks run", run->name,
       nranks);
    return run->out;
}

/* exact: no sum is divided among ranks, so that the same bits come out. */
static void compare_meshes(struct run *run, const struct outcome *one, bool exact)
{
    static const struct mesh_case {
        int nranks, nnodes;
        enum fsdp_strategy strategy;
        enum fsdp_offload offload;
    } meshes[] = {{2, 1, FSDP_FULL_SHARD, FSDP_OFFLOAD_NONE},
                  {3, 1, FSDP_FULL_SHARD, FSDP_OFFLOAD_OPTIMIZER},
                  {2, 1, FSDP_NO_SHARD, FSDP_OFFLOAD_NONE},
                  {4, 2, FSDP_HYBRID_SHARD, FSDP_OFFLOAD_NONE}};

    for (size_t i = 0; i < sizeof meshes / sizeof meshes[0]; i++) {
        run->strategy = meshes[i].strategy;
        run->offload = meshes[i].offload;
        struct outcome *got = run_on(run, meshes[i].nranks, meshes[i].nnodes);
        const double most = worst((const float *)got, (const float *)one,
                                  offsetof(struct outcome, nelem) / sizeof(float));
        ok(most <= (exact ? 0 : 1e-6), "%s: %d ranks, %s%s, differ from one by %.1e", run->name,
           meshes[i].nranks, fsdp_strategy_name(meshes[i].strategy),
           meshes[i].offload ? ", offloaded" : "", most);
        munmap(got, sizeof *got);
    }
}

static void run_case(const char *name, bool exact)
{
    char file[64];
    snprintf(file, sizeof file, "%s.safetensors", name);
    struct ref_tensors ref = ref_tensors_open(ref_path("slot-cases", file));
    const json_t *meta = json_object_get(ref.header, "__metadata__");
    json_t *spec = json_loads(json_string_value(json_object_get(meta, "case")), 0, NULL);
    struct run run = {.name = name, .spec = spec, .strategy = FSDP_FULL_SHARD};

    struct outcome *one = run_on(&run, 1, 1);
    compare_reference(&run, &ref);
    compare_meshes(&run, one, exact);
    munmap(one, sizeof *one);
    json_decref(spec);
    ref_tensors_close(&ref);
}

/* ---- a unit that is cut within blocks -------------------------------------------------------- */

static int plan_wide(const char *name, int nranks, struct fsdp_err *err)
{
    static const uint64_t shapes[2][2] = {{512, 4097}, {512, 4099}};
    struct fsdp_opts opts = FSDP_OPTS_INIT;
    struct fsdp_module_tree *tree;
    struct fsdp_device *device;
    struct fsdp *f = NULL;
    int root, index;

    if (fsdp_module_tree_create(&tree, NULL) || fsdp_device_open(&device, "cpu", 0, NULL) ||
        fsdp_module_add(tree, -1, "", "Model", &root, NULL))
        abort();
    for (int p = 0; p < 2; p++)
        if (fsdp_module_add_param(
                tree, root,
                &(struct fsdp_param_desc){
                    .name = p ? "b" : "a", .ndim = 2, .shape = shapes[p], .init = {0}},
                &index, NULL))
            abort();
    opts.wrap_policy = FSDP_WRAP_NONE;
    opts.optim.name = name;
    int rc = fsdp_plan(&f, tree, &opts, device,
                       (struct fsdp_mesh_shape){.shard_size = nranks, .replicate_size = 1}, err);
    fsdp_destroy(f);
    fsdp_device_close(device);
    fsdp_module_tree_destroy(tree);
    return rc;
}

static void test_chunks(void)
{
    struct fsdp_err err = FSDP_ERR_INIT;

    ok(plan_wide("adamw", 3, &err) == FSDP_OK && plan_wide("adamw8bit", 1, &err) == FSDP_OK,
       "rows of 4097 and 4099: adamw on 3 ranks, adamw8bit on one");
    ok(plan_wide("adamw8bit", 3, &err) == FSDP_EUNSUPPORTED && strstr(err.text, "cut in chunks") &&
           strstr(err.text, "'a'"),
       "adamw8bit on 3 is refused: %s", err.text);
}

int main(void)
{
    test_chunks();
    run_case("adamw8bit", true);
    run_case("adafactor", false);
    run_case("muon", true);
    return tap_done();
}
