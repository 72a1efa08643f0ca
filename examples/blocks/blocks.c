/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model that is larger than what one process should hold: blocks of two square linear layers with
 * a ReLU between them, and a head with one output, which learns the sign of its input's sum by the
 * binary cross entropy. Each block is a unit: only the block that computes is gathered.
 *
 *     cc -O3 -o blocks blocks.c $(pkg-config --cflags --libs fsdp-launch) -lm
 *     fsdp-launch -n 2 -- ./blocks                        8 blocks of width 4096: 268 million
 * weights fsdp-launch -n 3 -- ./blocks -w 64 -s 100           smaller; -b blocks, -n rows of a step
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <fsdp/fsdp.h>
#include <fsdp/launch.h>

enum { MAX_BLOCKS = 64, LANES = 16 };

struct layer {
    int w, b; /* parameters: w (nout, nin), b (nout) */
};

struct model {
    int width, nblocks, nsteps;
    int batch;       /* rows of a step on all ranks */
    int first, rows; /* this rank's of them */
    int root, block[MAX_BLOCKS], head;
    struct layer up[MAX_BLOCKS], down[MAX_BLOCKS], out;
    float *x, *y; /* inputs (rows, width) and labels (rows) of the step */
};

/* Activations, in the root's memory: inner[k] and outer[k] (rows, width) are what the two layers of
 * block k make, dinner and douter their gradients, and logit (rows) becomes its own. */
struct memory {
    float *inner[MAX_BLOCKS], *outer[MAX_BLOCKS], *dinner, *douter[2], *logit;
};

static float *part(float **at, size_t nelem)
{
    float *begin = *at;
    *at = begin ? begin + nelem : NULL;
    return begin;
}

/* The layout, for as many rows as the rank with most has. Returns its size in bytes. */
static size_t memory_layout(struct memory *mem, const struct model *m, void *saved, int most)
{
    const size_t nelem = (size_t)most * (size_t)m->width;
    float *at = saved;
    for (int k = 0; k < m->nblocks; k++) {
        mem->inner[k] = part(&at, nelem);
        mem->outer[k] = part(&at, nelem);
    }
    mem->dinner = part(&at, nelem);
    mem->douter[0] = part(&at, nelem);
    mem->douter[1] = part(&at, nelem);
    mem->logit = part(&at, (size_t)most);
    return ((2 * (size_t)m->nblocks + 3) * nelem + (size_t)most) * sizeof(float);
}

static int most_rows(const struct model *m, int nranks)
{
    return (m->batch + nranks - 1) / nranks;
}

/* ---- 1. describe ------------------------------------------------------------------------------
 */

/* bound: of the uniform weights, so that activations keep their size through the depth. */
static int describe_layer(struct layer *out, struct fsdp_module_tree *tree, int module,
                          const char *name, int nin, int nout, double bound, struct fsdp_err *err)
{
    const struct fsdp_init uniform = {FSDP_INIT_UNIFORM, (float)bound};
    const struct fsdp_init zeros = {FSDP_INIT_ZEROS, 0};
    const uint64_t shape[2] = {(uint64_t)nout, (uint64_t)nin};
    char param[64];
    const struct fsdp_param_desc weight = {
        .name = param, .ndim = 2, .shape = shape, .init = uniform};
    const struct fsdp_param_desc bias = {.name = param, .ndim = 1, .shape = shape, .init = zeros};
    snprintf(param, sizeof param, "%s.weight", name);
    FSDP_TRY(fsdp_module_add_param(tree, module, &weight, &out->w, err));
    snprintf(param, sizeof param, "%s.bias", name);
    return fsdp_module_add_param(tree, module, &bias, &out->b, err);
}

static int describe_block(struct model *m, struct fsdp_module_tree *tree, int k,
                          struct fsdp_err *err)
{
    const double bound = sqrt(3.0 / m->width);
    char name[32];
    snprintf(name, sizeof name, "layers.%d", k);
    FSDP_TRY(fsdp_module_add(tree, m->root, name, "Block", &m->block[k], err));
    snprintf(name, sizeof name, "layers.%d.0", k);
    FSDP_TRY(describe_layer(&m->up[k], tree, m->block[k], name, m->width, m->width,
                            sqrt(2.0) * bound, err));
    snprintf(name, sizeof name, "layers.%d.2", k);
    return describe_layer(&m->down[k], tree, m->block[k], name, m->width, m->width, bound, err);
}

static int describe(struct model *m, struct fsdp_module_tree *tree, int nranks,
                    struct fsdp_err *err)
{
    struct memory mem;
    struct fsdp_act_bytes act = {.saved = memory_layout(&mem, m, NULL, most_rows(m, nranks))};
    FSDP_TRY(fsdp_module_add(tree, -1, "", "Model", &m->root, err));
    FSDP_TRY(fsdp_module_set_act(tree, m->root, act, err));
    for (int k = 0; k < m->nblocks; k++)
        FSDP_TRY(describe_block(m, tree, k, err));
    FSDP_TRY(fsdp_module_add(tree, m->root, "output", "Head", &m->head, err));
    return describe_layer(&m->out, tree, m->head, "output", m->width, 1, 1 / sqrt(m->width), err);
}

/* ---- 2. arithmetic: functions that lanes call in order -----------------------------------------
 */

struct linear {
    float *y;       /* forward: out; backward: its gradient, in */
    const float *x; /* (rows, nin) */
    const float *w, *b;
    const float *relu; /* backward (optional): what the ReLU behind y made of it */
    float *dx, *dw, *db;
    float beta[2]; /* of dw and db: 0 overwrites, 1 adds */
    int rows, nin, nout;
    bool rectify; /* forward: a ReLU follows */
};

/* In LANES sums, which the compiler puts into one register. */
static float dot(const float *a, const float *b, int n)
{
    float part[LANES] = {0}, sum = 0;
    int i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++)
            part[l] += a[i + l] * b[i + l];
    for (; i < n; i++)
        sum += a[i] * b[i];
    for (int l = 0; l < LANES; l++)
        sum += part[l];
    return sum;
}

static void add_scaled(float *restrict y, float scale, const float *restrict x, int n)
{
    for (int i = 0; i < n; i++)
        y[i] += scale * x[i];
}

/* y = x wᵀ + b, or what of it is above 0 */
static int linear_forward(void *arg, struct fsdp_err *err)
{
    const struct linear *a = arg;
    (void)err;
    for (int o = 0; o < a->nout; o++)
        for (int r = 0; r < a->rows; r++) {
            const float y = a->b[o] + dot(a->x + (size_t)r * (size_t)a->nin,
                                          a->w + (size_t)o * (size_t)a->nin, a->nin);
            a->y[(size_t)r * (size_t)a->nout + (size_t)o] = a->rectify ? fmaxf(y, 0) : y;
        }
    return FSDP_OK;
}

static int linear_backward(void *arg, struct fsdp_err *err)
{
    const struct linear *a = arg;
    const size_t nin = (size_t)a->nin, nout = (size_t)a->nout;
    (void)err;
    memset(a->dx, 0, (size_t)a->rows * nin * sizeof *a->dx);
    for (size_t o = 0; o < nout; o++) {
        float *dw = a->dw + o * nin, db = 0;
        if (a->beta[0] == 0)
            memset(dw, 0, nin * sizeof *dw);
        for (size_t r = 0; r < (size_t)a->rows; r++) {
            const float dy = a->relu && !(a->relu[r * nout + o] > 0) ? 0 : a->y[r * nout + o];
            db += dy;
            add_scaled(dw, dy, a->x + r * nin, a->nin);
            add_scaled(a->dx + r * nin, dy, a->w + o * nin, a->nin);
        }
        a->db[o] = a->beta[1] == 0 ? db : a->db[o] + db;
    }
    return FSDP_OK;
}

/* The mean over the batch of the binary cross entropy, this rank's part; logit becomes its
 * gradient. Sums over the ranks: the engine's. */
struct loss {
    float *logit;
    const float *y;
    int rows, batch;
    double *loss, *right;
};

static int cross_entropy(void *arg, struct fsdp_err *err)
{
    const struct loss *a = arg;
    (void)err;
    for (int r = 0; r < a->rows; r++) {
        const double z = a->logit[r], y = a->y[r];
        *a->loss += (fmax(z, 0) - z * y + log1p(exp(-fabs(z)))) / a->batch;
        *a->right += (z > 0) == (y > 0);
        a->logit[r] = (float)((1 / (1 + exp(-z)) - y) / a->batch);
    }
    return FSDP_OK;
}

#define CALL(lane, fn, args) fsdp_lane_call(lane, fn, &(args), sizeof(args), err)

/* ---- 3. the pass --------------------------------------------------------------------------------
 */

static struct linear linear_of(const struct model *m, const struct layer *l, int nout,
                               const struct fsdp_view *view, bool backward)
{
    struct linear a = {.w = view->param[l->w], .b = view->param[l->b]};
    a.rows = m->rows;
    a.nin = m->width;
    a.nout = nout;
    if (backward) {
        a.dw = view->grad[l->w];
        a.db = view->grad[l->b];
        a.beta[0] = fsdp_view_grad_beta(view, l->w);
        a.beta[1] = fsdp_view_grad_beta(view, l->b);
    }
    return a;
}

static int forward_block(struct model *m, struct fsdp *f, const struct memory *mem, int k,
                         struct fsdp_err *err)
{
    struct fsdp_view view;
    FSDP_TRY(fsdp_module_enter(f, m->block[k], FSDP_FORWARD, &view, err));
    struct linear up = linear_of(m, &m->up[k], m->width, &view, false);
    up.x = k ? mem->outer[k - 1] : m->x;
    up.y = mem->inner[k];
    up.rectify = true;
    FSDP_TRY(CALL(view.lane, linear_forward, up));
    struct linear down = linear_of(m, &m->down[k], m->width, &view, false);
    down.x = mem->inner[k];
    down.y = mem->outer[k];
    FSDP_TRY(CALL(view.lane, linear_forward, down));
    return fsdp_module_leave(f, m->block[k], FSDP_FORWARD, err);
}

static int forward(struct model *m, struct fsdp *f, int most, double control[2],
                   struct fsdp_err *err)
{
    struct fsdp_view root, view;
    struct memory mem;
    FSDP_TRY(fsdp_module_enter(f, m->root, FSDP_FORWARD, &root, err));
    memory_layout(&mem, m, root.saved, most);
    for (int k = 0; k < m->nblocks; k++)
        FSDP_TRY(forward_block(m, f, &mem, k, err));
    FSDP_TRY(fsdp_module_enter(f, m->head, FSDP_FORWARD, &view, err));
    struct linear out = linear_of(m, &m->out, 1, &view, false);
    out.x = mem.outer[m->nblocks - 1];
    out.y = mem.logit;
    FSDP_TRY(CALL(view.lane, linear_forward, out));
    FSDP_TRY(fsdp_module_leave(f, m->head, FSDP_FORWARD, err));
    struct loss loss = {mem.logit, m->y, m->rows, m->batch, &control[0], &control[1]};
    FSDP_TRY(CALL(root.lane, cross_entropy, loss));
    return fsdp_module_leave(f, m->root, FSDP_FORWARD, err);
}

static int backward_block(struct model *m, struct fsdp *f, const struct memory *mem, int k,
                          struct fsdp_err *err)
{
    struct fsdp_view view;
    FSDP_TRY(fsdp_module_enter(f, m->block[k], FSDP_BACKWARD, &view, err));
    struct linear down = linear_of(m, &m->down[k], m->width, &view, true);
    down.x = mem->inner[k];
    down.y = mem->douter[k % 2];
    down.dx = mem->dinner;
    FSDP_TRY(CALL(view.lane, linear_backward, down));
    struct linear up = linear_of(m, &m->up[k], m->width, &view, true);
    up.x = k ? mem->outer[k - 1] : m->x;
    up.y = mem->dinner;
    up.relu = mem->inner[k];
    up.dx = mem->douter[(k + 1) % 2];
    FSDP_TRY(CALL(view.lane, linear_backward, up));
    return fsdp_module_leave(f, m->block[k], FSDP_BACKWARD, err);
}

static int backward(struct model *m, struct fsdp *f, int most, struct fsdp_err *err)
{
    struct fsdp_view root, view;
    struct memory mem;
    FSDP_TRY(fsdp_module_enter(f, m->root, FSDP_BACKWARD, &root, err));
    memory_layout(&mem, m, root.saved, most);
    FSDP_TRY(fsdp_module_enter(f, m->head, FSDP_BACKWARD, &view, err));
    struct linear out = linear_of(m, &m->out, 1, &view, true);
    out.x = mem.outer[m->nblocks - 1];
    out.y = mem.logit;
    out.dx = mem.douter[(m->nblocks - 1) % 2];
    FSDP_TRY(CALL(view.lane, linear_backward, out));
    FSDP_TRY(fsdp_module_leave(f, m->head, FSDP_BACKWARD, err));
    for (int k = m->nblocks - 1; k >= 0; k--)
        FSDP_TRY(backward_block(m, f, &mem, k, err));
    return fsdp_module_leave(f, m->root, FSDP_BACKWARD, err);
}

/* ---- 4. data and training -----------------------------------------------------------------------
 */

/* A number from -1 to 1 that depends on the indices alone, so that a row is the same on any rank.
 */
static float value_of(uint64_t row, uint64_t column)
{
    uint64_t z = (row << 32 | column) * UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return (float)(z >> 40) / (1 << 23) - 1;
}

static void make_rows(struct model *m, int step)
{
    for (int r = 0; r < m->rows; r++) {
        const uint64_t row = (uint64_t)step * (uint64_t)m->batch + (uint64_t)(m->first + r);
        float *x = m->x + (size_t)r * (size_t)m->width;
        double sum = 0;
        for (int i = 0; i < m->width; i++)
            sum += x[i] = value_of(row, (uint64_t)i);
        m->y[r] = sum > 0;
    }
}

static int train(struct model *m, struct fsdp *f, const struct fsdp_launch_info *info,
                 struct fsdp_err *err)
{
    const int most = most_rows(m, info->size);
    for (int step = 0; step < m->nsteps; step++) {
        double control[FSDP_CONTROL_NELEM] = {0}; /* summed over the ranks: loss, right answers */
        struct fsdp_step_args args = {.step = step, .lr = 0.064 / m->width, .control = control};
        struct fsdp_step_result result;
        make_rows(m, step);
        FSDP_TRY(fsdp_micro_begin(f, FSDP_TRAIN, 0, err));
        FSDP_TRY(forward(m, f, most, control, err));
        FSDP_TRY(backward(m, f, most, err));
        FSDP_TRY(fsdp_micro_end(f, err));
        FSDP_TRY(fsdp_step(f, &args, &result, err));
        if (info->rank == 0 && (step % 10 == 0 || step == m->nsteps - 1)) {
            printf("step %3d  loss %.4f  right %3.0f %%\n", step, result.control[0],
                   100 * result.control[1] / m->batch);
            fflush(stdout);
        }
    }
    return FSDP_OK;
}

/* ---- 5. the job ---------------------------------------------------------------------------------
 */

struct job {
    struct fsdp_launch *launch;
    struct fsdp_device *device;
    struct fsdp_mesh *mesh;
    struct fsdp_module_tree *tree;
    struct fsdp *f;
};

/* Rank k of n has the rows from k batch / n on. */
static int divide_rows(struct model *m, const struct fsdp_launch_info *info, struct fsdp_err *err)
{
    m->first = (int)((int64_t)info->rank * m->batch / info->size);
    m->rows = (int)((int64_t)(info->rank + 1) * m->batch / info->size) - m->first;
    m->x = calloc((size_t)most_rows(m, info->size) * (size_t)m->width, sizeof *m->x);
    m->y = calloc((size_t)most_rows(m, info->size), sizeof *m->y);
    return m->x && m->y ? FSDP_OK : fsdp_err_set(err, FSDP_ENOMEM, "no memory for the rows");
}

static int job_open(struct job *j, struct model *m, struct fsdp_err *err)
{
    static const char *const units[] = {"Block", NULL};
    struct fsdp_opts opts = FSDP_OPTS_INIT;
    struct fsdp_mesh_shape shape;

    opts.wrap_policy = FSDP_WRAP_TRANSFORMER;
    opts.wrap_classes = units;
    FSDP_TRY(fsdp_launch_open(&j->launch, NULL, err));
    const struct fsdp_launch_info *info = fsdp_launch_info(j->launch);
    const struct fsdp_node_map *nodes = fsdp_launch_nodes(j->launch);
    FSDP_TRY(divide_rows(m, info, err));
    FSDP_TRY(fsdp_module_tree_create(&j->tree, err));
    FSDP_TRY(describe(m, j->tree, info->size, err));
    FSDP_TRY(fsdp_device_open(&j->device, "cpu", 0, err));
    FSDP_TRY(fsdp_mesh_shape_for(&shape, opts.sharding_strategy, 0, nodes, err));
    FSDP_TRY(fsdp_mesh_create(&j->mesh, shape, "auto", 600, nodes, fsdp_launch_oob(j->launch),
                              j->device, err));
    FSDP_TRY(fsdp_create(&j->f, j->tree, &opts, j->device, j->mesh, err));
    FSDP_TRY(fsdp_init_params(j->f, err));
    if (info->rank == 0)
        printf("%d blocks of width %d, %.1f million weights on %d rank%s\n", m->nblocks, m->width,
               (2.0 * m->nblocks * (m->width + 1.0) * m->width + m->width + 1) / 1e6, info->size,
               info->size == 1 ? "" : "s");
    return FSDP_OK;
}

static void job_close(struct job *j, struct model *m)
{
    fsdp_destroy(j->f);
    fsdp_mesh_destroy(j->mesh);
    fsdp_device_close(j->device);
    fsdp_module_tree_destroy(j->tree);
    fsdp_launch_close(j->launch);
    free(m->x);
    free(m->y);
}

static int usage(void)
{
    fprintf(stderr,
            "usage: blocks [-w WIDTH (4096)] [-b BLOCKS (8, at most %d)] [-s STEPS (50)] "
            "[-n ROWS (32)]\n",
            MAX_BLOCKS);
    return FSDP_LAUNCH_USAGE;
}

int main(int argc, char **argv)
{
    static struct model m = {.width = 4096, .nblocks = 8, .nsteps = 50, .batch = 32};
    struct fsdp_err err = FSDP_ERR_INIT;
    struct job job = {0};
    int option, code = FSDP_LAUNCH_DONE;

    while ((option = getopt(argc, argv, "w:b:s:n:")) != -1) {
        int *to = option == 'w'   ? &m.width
                  : option == 'b' ? &m.nblocks
                  : option == 's' ? &m.nsteps
                  : option == 'n' ? &m.batch
                                  : NULL;
        if (!to || (*to = atoi(optarg)) < 1)
            return usage();
    }
    if (optind < argc || m.nblocks > MAX_BLOCKS)
        return usage();
    int rc = job_open(&job, &m, &err);
    if (rc == FSDP_OK)
        rc = train(&m, job.f, fsdp_launch_info(job.launch), &err);
    if (rc)
        code = fsdp_launch_fail(job.launch, &err);
    job_close(&job, &m);
    return code;
}
