/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model of one's own on the installed headers: a network of two layers learns a function by
 * regression, on any number of ranks. models/README.md explains it.
 *
 *     cc -o mlp mlp.c $(pkg-config --cflags --libs fsdp-launch) -lm
 *     ./mlp            trains, and fails unless the loss fell to a tenth
 *     fsdp-launch -n 3 -- ./mlp       the same on three ranks; or srun -n 3, or mpirun -n 3
 *
 * With ../../models/check/gradcheck.c next to it, it also checks its own backward pass:
 *
 *     cc -DGRADCHECK -I../../models/check -o mlp mlp.c ../../models/check/gradcheck.c \
 *         $(pkg-config --cflags --libs fsdp-launch) -lm
 *     ./mlp check
 *
 * With keep.c next to it, it saves and resumes (docs/tutorials/own-model.md):
 *
 *     cc -DKEEP -o mlp mlp.c keep.c $(pkg-config --cflags --libs fsdp-launch ckpt) -lm
 *     fsdp-launch -n 3 -- ./mlp checkpoints 150
 *     fsdp-launch -n 2 -- ./mlp checkpoints
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <fsdp/fsdp.h>
#include <fsdp/launch.h>
#ifdef GRADCHECK
#include "gradcheck.h"
#endif
#ifdef KEEP
#include <stdlib.h>

#include "keep.h"
#endif

enum { ROWS = 64, NIN = 3, NHIDDEN = 32, NOUT = 2, STEPS = 300 };

struct mlp {
    int root, layer[2];   /* modules */
    int w[2], b[2];       /* parameters: w (nout, nin), b (nout) */
    int rows;             /* how many of the examples are this rank's */
    float x[ROWS * NIN];  /* their inputs */
    float y[ROWS * NOUT]; /* and what is to come out */
};

/* Activations: all of them in the root's memory, which lives from its forward to its backward. */
struct memory {
    float *hidden, *dhidden, *error; /* (ROWS, NHIDDEN) twice, (ROWS, NOUT) */
    int rows;
};

static size_t memory_layout(struct memory *mem, const struct mlp *m, void *saved)
{
    float *at = saved;
    mem->rows = m->rows;
    mem->hidden = at;
    mem->dhidden = at ? at + ROWS * NHIDDEN : NULL;
    mem->error = at ? at + 2 * ROWS * NHIDDEN : NULL;
    return (2 * ROWS * NHIDDEN + ROWS * NOUT) * sizeof(float);
}

/* ---- 1. describe: modules in the order of the forward pass, their parameters and memory ------ */

static int describe_layer(struct mlp *m, struct fsdp_module_tree *tree, int k, uint64_t nin,
                          uint64_t nout, struct fsdp_err *err)
{
    const struct fsdp_init uniform = {FSDP_INIT_UNIFORM, 1 / sqrtf((float)nin)};
    const struct fsdp_init zeros = {FSDP_INIT_ZEROS, 0};
    const uint64_t shape[2] = {nout, nin};
    char name[32];
    const struct fsdp_param_desc weight = {
        .name = name, .ndim = 2, .shape = shape, .init = uniform};
    const struct fsdp_param_desc bias = {.name = name, .ndim = 1, .shape = shape, .init = zeros};

    snprintf(name, sizeof name, "layer.%d", k);
    FSDP_TRY(fsdp_module_add(tree, m->root, name, "Layer", &m->layer[k], err));
    snprintf(name, sizeof name, "layer.%d.weight", k);
    FSDP_TRY(fsdp_module_add_param(tree, m->layer[k], &weight, &m->w[k], err));
    snprintf(name, sizeof name, "layer.%d.bias", k);
    return fsdp_module_add_param(tree, m->layer[k], &bias, &m->b[k], err);
}

static int describe(struct mlp *m, struct fsdp_module_tree *tree, struct fsdp_err *err)
{
    struct memory mem;
    FSDP_TRY(fsdp_module_add(tree, -1, "", "Mlp", &m->root, err));
    struct fsdp_act_bytes act = {.saved = memory_layout(&mem, m, NULL)};
    FSDP_TRY(fsdp_module_set_act(tree, m->root, act, err));
    FSDP_TRY(describe_layer(m, tree, 0, NIN, NHIDDEN, err));
    return describe_layer(m, tree, 1, NHIDDEN, NOUT, err);
}

/* ---- 2. arithmetic: functions with one argument struct, which lanes call in order ------------ */

struct linear {
    float *y;       /* forward: out; backward: its gradient, in */
    const float *x; /* (rows, nin) */
    const float *w, *b;
    float *dx, *dw, *db; /* backward; dx may be NULL */
    float beta[2];       /* of dw and db: 0 overwrites, 1 adds */
    int rows, nin, nout;
};

/* y = x wᵀ + b */
static int linear_forward(void *arg, struct fsdp_err *err)
{
    const struct linear *a = arg;
    (void)err;
    for (int r = 0; r < a->rows; r++)
        for (int o = 0; o < a->nout; o++) {
            float sum = a->b[o];
            for (int i = 0; i < a->nin; i++)
                sum += a->x[r * a->nin + i] * a->w[o * a->nin + i];
            a->y[r * a->nout + o] = sum;
        }
    return FSDP_OK;
}

static int linear_backward(void *arg, struct fsdp_err *err)
{
    const struct linear *a = arg;
    (void)err;
    if (a->dx)
        memset(a->dx, 0, (size_t)a->rows * (size_t)a->nin * sizeof *a->dx);
    for (int o = 0; o < a->nout; o++) {
        float *dw = a->dw + o * a->nin, db = 0;
        for (int i = 0; i < a->nin && a->beta[0] == 0; i++)
            dw[i] = 0;
        for (int r = 0; r < a->rows; r++) {
            const float dy = a->y[r * a->nout + o];
            db += dy;
            for (int i = 0; i < a->nin; i++) {
                dw[i] += dy * a->x[r * a->nin + i];
                if (a->dx)
                    a->dx[r * a->nin + i] += dy * a->w[o * a->nin + i];
            }
        }
        a->db[o] = a->beta[1] == 0 ? db : a->db[o] + db;
    }
    return FSDP_OK;
}

static int tanh_forward(void *arg, struct fsdp_err *err)
{
    const struct memory *mem = arg;
    (void)err;
    for (int i = 0; i < mem->rows * NHIDDEN; i++)
        mem->hidden[i] = tanhf(mem->hidden[i]);
    return FSDP_OK;
}

static int tanh_backward(void *arg, struct fsdp_err *err)
{
    const struct memory *mem = arg;
    (void)err;
    for (int i = 0; i < mem->rows * NHIDDEN; i++)
        mem->dhidden[i] *= 1 - mem->hidden[i] * mem->hidden[i];
    return FSDP_OK;
}

/* Half the mean over all ROWS of |out - y|², this rank's part; out becomes its gradient. The engine
 * sums both over the ranks. */
struct loss {
    float *out;
    const float *y;
    int rows;
    double *loss;
};

static int squared_error(void *arg, struct fsdp_err *err)
{
    const struct loss *a = arg;
    double sum = 0;
    (void)err;
    for (int i = 0; i < a->rows * NOUT; i++) {
        const float error = a->out[i] - a->y[i];
        sum += 0.5 * error * error;
        a->out[i] = error / ROWS;
    }
    *a->loss += sum / ROWS;
    return FSDP_OK;
}

#define CALL(lane, fn, args) fsdp_lane_call(lane, fn, &(args), sizeof(args), err)

/* ---- 3. the pass: enter a module, use its parameters, leave it ------------------------------- */

static struct linear linear_of(const struct mlp *m, const struct memory *mem, int k,
                               const struct fsdp_view *view)
{
    struct linear a = {.w = view->param[m->w[k]], .b = view->param[m->b[k]], .rows = m->rows};
    a.x = k == 0 ? m->x : mem->hidden;
    a.y = k == 0 ? mem->hidden : mem->error;
    a.nin = k == 0 ? NIN : NHIDDEN;
    a.nout = k == 0 ? NHIDDEN : NOUT;
    return a;
}

static int forward(struct mlp *m, struct fsdp *f, double *loss, struct fsdp_err *err)
{
    struct fsdp_view root, view;
    struct memory mem;

    FSDP_TRY(fsdp_module_enter(f, m->root, FSDP_FORWARD, &root, err));
    memory_layout(&mem, m, root.saved);
    for (int k = 0; k < 2; k++) {
        FSDP_TRY(fsdp_module_enter(f, m->layer[k], FSDP_FORWARD, &view, err));
        struct linear a = linear_of(m, &mem, k, &view);
        FSDP_TRY(CALL(view.lane, linear_forward, a));
        if (k == 0)
            FSDP_TRY(CALL(view.lane, tanh_forward, mem));
        FSDP_TRY(fsdp_module_leave(f, m->layer[k], FSDP_FORWARD, err));
    }
    struct loss a = {mem.error, m->y, m->rows, loss};
    FSDP_TRY(CALL(root.lane, squared_error, a));
    return fsdp_module_leave(f, m->root, FSDP_FORWARD, err);
}

/* The same nest, children in reverse. fsdp_view_grad_beta says how a gradient is written. */
static int backward(struct mlp *m, struct fsdp *f, struct fsdp_err *err)
{
    struct fsdp_view root, view;
    struct memory mem;

    FSDP_TRY(fsdp_module_enter(f, m->root, FSDP_BACKWARD, &root, err));
    memory_layout(&mem, m, root.saved);
    for (int k = 1; k >= 0; k--) {
        FSDP_TRY(fsdp_module_enter(f, m->layer[k], FSDP_BACKWARD, &view, err));
        struct linear a = linear_of(m, &mem, k, &view);
        a.y = k == 0 ? mem.dhidden : mem.error;
        a.dx = k == 0 ? NULL : mem.dhidden;
        a.dw = view.grad[m->w[k]];
        a.db = view.grad[m->b[k]];
        a.beta[0] = fsdp_view_grad_beta(&view, m->w[k]);
        a.beta[1] = fsdp_view_grad_beta(&view, m->b[k]);
        if (k == 0)
            FSDP_TRY(CALL(view.lane, tanh_backward, mem));
        FSDP_TRY(CALL(view.lane, linear_backward, a));
        FSDP_TRY(fsdp_module_leave(f, m->layer[k], FSDP_BACKWARD, err));
    }
    return fsdp_module_leave(f, m->root, FSDP_BACKWARD, err);
}

static int pass(void *ctx, struct fsdp *f, bool train, double *loss, struct fsdp_err *err)
{
    FSDP_TRY(forward(ctx, f, loss, err));
    return train ? backward(ctx, f, err) : FSDP_OK;
}

/* ---- 4. training ----------------------------------------------------------------------------- */

/* From the state after `from` steps to that after `to` steps. */
static int train(struct mlp *m, struct fsdp *f, int from, int to, bool prints,
                 struct fsdp_err *err)
{
    double first = 0, last = 0;

    for (int step = from; step < to; step++) {
        double control[FSDP_CONTROL_NELEM] = {0}; /* summed over the ranks: here, the loss */
        struct fsdp_step_args args = {
            .step = step, .lr = 1e-2 * (STEPS - step) / STEPS, .control = control};
        struct fsdp_step_result result;
        FSDP_TRY(fsdp_micro_begin(f, FSDP_TRAIN, 0, err));
        FSDP_TRY(pass(m, f, true, &control[0], err));
        FSDP_TRY(fsdp_micro_end(f, err));
        FSDP_TRY(fsdp_step(f, &args, &result, err));
        last = result.control[0];
        first = step ? first : last;
        if (prints && (step % 50 == 0 || step == to - 1))
            printf("step %3d  loss %.4f  gradient %.3f\n", step, last, (double)result.grad_norm);
    }
    if (from == 0 && to == STEPS && !(last < first / 10))
        return fsdp_err_set(err, FSDP_EINTERNAL, "the loss went from %g to %g only", first, last);
    return FSDP_OK;
}

#ifdef GRADCHECK
static int check(struct mlp *m, struct fsdp *f, const struct fsdp_module_tree *tree,
                 struct fsdp_err *err)
{
    struct gradcheck_row rows[4];
    FSDP_TRY(gradcheck_randomize(f, tree, 0, err));
    FSDP_TRY(gradcheck_run(rows, f, tree, 8, 0, pass, m, err));
    for (int i = 0; i < 4; i++) {
        printf("%.1e  %s\n", rows[i].worst, rows[i].name);
        if (!(rows[i].worst < 3e-3))
            return fsdp_err_set(err, FSDP_EINTERNAL, "the gradient of %s is wrong", rows[i].name);
    }
    return FSDP_OK;
}
#endif

#ifdef KEEP
/* Resumes from the newest checkpoint in the folder, if there is one, and saves after `to` steps. */
static int train_kept(struct mlp *m, struct fsdp *f, const char *folder, int to,
                      struct fsdp_launch *launch, struct fsdp_err *err)
{
    const bool prints = fsdp_launch_info(launch)->rank == 0;
    struct fsdp_oob *oob = fsdp_launch_oob(launch);
    int from;

    FSDP_TRY(keep_load(&from, f, folder, oob, err));
    if (prints && from)
        printf("resumed after %d steps\n", from);
    if (from >= to)
        return FSDP_OK;
    FSDP_TRY(train(m, f, from, to, prints, err));
    return keep_save(f, folder, to, oob, err);
}
#endif

/* Rank k of n has the rows from k ROWS / n on. */
static void make_examples(struct mlp *m, const struct fsdp_launch_info *info)
{
    const int first = info->rank * ROWS / info->size;
    m->rows = (info->rank + 1) * ROWS / info->size - first;
    for (int r = 0; r < m->rows; r++) {
        float *x = m->x + r * NIN;
        for (int i = 0; i < NIN; i++)
            x[i] = (float)(((first + r) * (7 + 6 * i) + 5 * i) % ROWS) / (ROWS / 2) - 1;
        m->y[r * NOUT] = x[0] * x[1];
        m->y[r * NOUT + 1] = sinf(2 * x[2]);
    }
}

/* What a rank needs. */
struct job {
    struct fsdp_launch *launch;
    struct fsdp_device *device;
    struct fsdp_mesh *mesh;
    struct fsdp_module_tree *tree;
    struct fsdp *f;
};

static int job_open(struct job *j, struct mlp *m, const struct fsdp_opts *opts,
                    struct fsdp_err *err)
{
    const struct fsdp_node_map *nodes;
    struct fsdp_mesh_shape shape;

    FSDP_TRY(fsdp_launch_open(&j->launch, NULL, err));
    nodes = fsdp_launch_nodes(j->launch);
    make_examples(m, fsdp_launch_info(j->launch));
    FSDP_TRY(fsdp_module_tree_create(&j->tree, err));
    FSDP_TRY(describe(m, j->tree, err));
    FSDP_TRY(fsdp_device_open(&j->device, "cpu", 0, err));
    FSDP_TRY(fsdp_mesh_shape_for(&shape, opts->sharding_strategy, 0, nodes, err));
    FSDP_TRY(fsdp_mesh_create(&j->mesh, shape, "auto", 60, nodes, fsdp_launch_oob(j->launch),
                              j->device, err));
    FSDP_TRY(fsdp_create(&j->f, j->tree, opts, j->device, j->mesh, err));
    return fsdp_init_params(j->f, err);
}

static void job_close(struct job *j)
{
    fsdp_destroy(j->f);
    fsdp_mesh_destroy(j->mesh);
    fsdp_device_close(j->device);
    fsdp_launch_close(j->launch);
    fsdp_module_tree_destroy(j->tree);
}

int main(int argc, char **argv)
{
    static const char *const units[] = {"Layer", NULL};
    static struct mlp m;
    struct fsdp_err err = FSDP_ERR_INIT;
    struct fsdp_opts opts = FSDP_OPTS_INIT;
    struct job job = {0};
    const bool checks = argc > 1 && !strcmp(argv[1], "check");
    int rc, code = 0;

#ifdef GRADCHECK
    if (checks)
        opts = gradcheck_opts();
#else
    if (checks)
        return fprintf(stderr, "mlp: built without GRADCHECK\n"), 2;
#endif
    opts.wrap_policy =
        FSDP_WRAP_TRANSFORMER; /* each module of these classes is sharded as a unit */
    opts.wrap_classes = units;
    rc = job_open(&job, &m, &opts, &err);
    if (rc == FSDP_OK && argc == 1)
        rc = train(&m, job.f, 0, STEPS, fsdp_launch_info(job.launch)->rank == 0, &err);
#ifdef KEEP
    if (rc == FSDP_OK && argc > 1 && !checks)
        rc = train_kept(&m, job.f, argv[1], argc > 2 ? atoi(argv[2]) : STEPS, job.launch, &err);
#endif
#ifdef GRADCHECK
    if (rc == FSDP_OK && checks)
        rc = check(&m, job.f, job.tree, &err);
#endif
    if (rc)
        code = fsdp_launch_fail(job.launch, &err);
    job_close(&job);
    return code;
}
