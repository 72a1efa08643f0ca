/* SPDX-License-Identifier: Apache-2.0 */
/* What a batch may ask for besides tokens: labels that do not count, several documents in a row,
 * dropout; and products in 8 bits. Losses and all gradients of one pass over a model against
 * another way to the same. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check/gradcheck.h"
#include "family/stack.h"
#include "nn/cpu/cpu.h"
#include "ref_run.h"

enum { B = 4, T = 32, NROWS = B * (T + 1), MAX_BATCHES = 16 };
static struct fsdp_err err = FSDP_ERR_INIT;
static struct fsdp_oob *oob;
static int32_t tokens[NROWS]; /* (B, T+1) */

/* Micro-batches of one optimizer step, and what comes of them. */
struct pass {
    const char *folder;
    int nbatches;
    struct model_batch batches[MAX_BATCHES];
    int recompute;              /* FSDP_AC_* */
    const char *const *modules; /* recomputed; NULL: all */
    size_t saved;               /* planned bytes of what lives from forward to backward */
    double dropout;
    void (*use_ops)(struct model *model);
    const struct fsdp_gather_codec *codec;
    double loss;
    float *grad; /* of all parameters, one after the other */
    size_t nelem;
};

static int collect(void *ctx, enum fsdp_slice_kind kind, const struct fsdp_slice *slice,
                   const struct fsdp_slice_io *io, struct fsdp_err *e)
{
    struct pass *p = ctx;
    const size_t nelem = fsdp_box_nelem(&slice->box, slice->tensor.ndim);
    const char *name = slice->tensor.name, *dot = strrchr(name, '.');
    if (kind != FSDP_SLICE_OPTIM || strcmp(dot, ".exp_avg") != 0)
        return FSDP_OK;
    p->grad = realloc(p->grad, (p->nelem + nelem) * sizeof *p->grad);
    FSDP_TRY(io->read(io->ctx, 0, p->grad + p->nelem, nelem * sizeof *p->grad, e));
    p->nelem += nelem;
    return FSDP_OK;
}

static size_t saved_nbytes(const struct fsdp *f)
{
    struct fsdp_memory_row rows[32];
    const int nrows = fsdp_memory_plan(f, rows, 32);
    for (int i = 0; i < nrows; i++)
        if (strstr(rows[i].what, "saved for backward"))
            return rows[i].nbytes;
    return 0;
}

static int run(struct pass *p)
{
    static const int node_of[1];
    const struct fsdp_node_map nodes = {.nranks = 1, .nnodes = 1, .node_of = node_of};
    struct ref_setup setup = {.folder = p->folder, .B = B, .T = T, .opts = gradcheck_opts()};
    const struct fsdp_step_args args = {0};
    struct ref_rank r;

    p->loss = 0;
    p->nelem = 0;
    setup.use_ops = p->use_ops;
    setup.opts.gather_codec = p->codec;
    setup.opts.accumulation = p->nbatches;
    setup.opts.activation_checkpointing = p->recompute;
    setup.opts.checkpoint_modules = p->modules;
    FSDP_TRY(ref_rank_open(&r, &setup, oob, &nodes, &err));
    r.ops->set_dropout(r.model, p->dropout);
    p->saved = saved_nbytes(r.f);
    for (int m = 0; m < p->nbatches; m++) {
        p->batches[m].dropout = p->dropout > 0;
        FSDP_TRY(fsdp_micro_begin(r.f, FSDP_TRAIN, m, &err));
        FSDP_TRY(r.ops->run(r.model, r.f, &p->batches[m], true, &p->loss, &err));
        FSDP_TRY(fsdp_micro_end(r.f, &err));
    }
    FSDP_TRY(fsdp_step(r.f, &args, NULL, &err));
    FSDP_TRY(fsdp_sync(r.f, &err));
    int rc = fsdp_state_each(r.f, collect, p, &err);
    ref_rank_close(&r);
    return rc;
}

static struct pass plain(const char *folder)
{
    return (struct pass){
        .folder = folder,
        .nbatches = 1,
        .batches = {{.tokens = tokens, .B = B, .T = T, .loss_scale = 1, .seed = 9}},
    };
}

/* ||a - b|| / ||b|| */
static double difference(const struct pass *a, const struct pass *b)
{
    double diff = 0, norm = 0;
    if (a->nelem != b->nelem)
        return 1e30;
    for (size_t i = 0; i < a->nelem; i++) {
        diff += ((double)a->grad[i] - b->grad[i]) * ((double)a->grad[i] - b->grad[i]);
        norm += (double)b->grad[i] * b->grad[i];
    }
    return norm > 0 ? sqrt(diff / norm) : sqrt(diff);
}

static bool equal(const struct pass *a, const struct pass *b)
{
    return a->nelem && a->nelem == b->nelem && a->loss == b->loss &&
           !memcmp(a->grad, b->grad, a->nelem * sizeof *a->grad);
}

static void expect_close(struct pass *a, struct pass *b, const char *what)
{
    int rc = run(a) | run(b);
    double loss = fabs(a->loss - b->loss) / b->loss, grad = difference(a, b);
    ok(!rc && loss < 1e-6 && grad < 2e-6, "%s: %s: loss %.7g, off by %.1e; gradients by %.1e%s",
       a->folder, what, a->loss, loss, grad, rc ? err.text : "");
    free(a->grad), free(b->grad);
}

/* ---- labels --------------------------------------------------------------------------------- */

static void test_labels(const char *folder)
{
    static int32_t labels[B * T], none[B * T];
    struct pass all = plain(folder), masked = plain(folder), rest = plain(folder);
    struct pass nothing = plain(folder), both = plain(folder);

    for (int b = 0; b < B; b++)
        for (int t = 0; t < T; t++) {
            labels[b * T + t] = t % 3 ? MODEL_IGNORE : tokens[b * (T + 1) + t + 1];
            none[b * T + t] = MODEL_IGNORE;
        }
    masked.batches[0].labels = labels;
    rest.batches[0].labels = none;
    int rc = run(&all) | run(&masked) | run(&rest);
    double zero = 0;
    for (size_t i = 0; i < rest.nelem; i++)
        zero += rest.grad[i] != 0;
    ok(!rc && masked.loss > 0.2 * all.loss && masked.loss < 0.5 * all.loss,
       "%s: a third of the labels counts: loss %.4f of %.4f", folder, masked.loss, all.loss);
    ok(rest.loss == 0 && zero == 0, "without labels that count, loss and gradients are zero");
    /* The complement's loss and gradients make up the whole. */
    for (int i = 0; i < B * T; i++)
        none[i] = labels[i] != MODEL_IGNORE ? MODEL_IGNORE : tokens[i / T * (T + 1) + i % T + 1];
    both.nbatches = 2;
    both.batches[1] = both.batches[0];
    both.batches[0].labels = labels;
    both.batches[1].labels = none;
    expect_close(&both, &nothing, "those labels and then the others");
    free(all.grad), free(masked.grad), free(rest.grad);
}

/* ---- documents ------------------------------------------------------------------------------ */

/* Row b of the batch is documents of 5 + b, 1, and the remaining positions; their last tokens
 * predict nothing. */
static void test_documents(const char *folder)
{
    static int32_t starts[B * T], labels[B * T];
    struct pass packed = plain(folder), alone = plain(folder);
    packed.batches[0].starts = starts;
    packed.batches[0].labels = labels;
    alone.nbatches = 0;
    for (int b = 0; b < B; b++) {
        const int bounds[] = {0, 5 + b, 6 + b, T};
        for (int d = 0; d < 3; d++) {
            const int first = bounds[d], end = bounds[d + 1];
            for (int t = first; t < end; t++) {
                starts[b * T + t] = first;
                labels[b * T + t] = t + 1 < end ? tokens[b * (T + 1) + t + 1] : MODEL_IGNORE;
            }
            if (end - first > 1)
                alone.batches[alone.nbatches++] =
                    (struct model_batch){.tokens = tokens + b * (T + 1) + first,
                                         .B = 1,
                                         .T = end - first - 1,
                                         .loss_scale = 1};
        }
    }
    expect_close(&packed, &alone, "documents in rows, and each alone");
}

/* ---- dropout -------------------------------------------------------------------------------- */

static void test_dropout(const char *folder)
{
    static const char *const patterns[] = {"*.*.1", NULL}; /* the second layer */
    struct pass off = plain(folder), on = plain(folder), again = plain(folder);
    struct pass part = plain(folder), one = plain(folder);
    struct pass other = plain(folder), whole = plain(folder), rows = plain(folder);

    on.dropout = again.dropout = other.dropout = whole.dropout = rows.dropout = 0.2;
    again.recompute = FSDP_AC_FULL;
    part.dropout = one.dropout = 0.2;
    part.recompute = one.recompute = FSDP_AC_SELECTIVE;
    one.modules = patterns;
    other.batches[0].seed = 10;
    int rc = run(&off) | run(&on) | run(&again) | run(&part) | run(&one) | run(&other);
    ok(!rc && on.loss != off.loss && difference(&on, &off) > 0.05,
       "%s: dropout has an effect: loss %.5f, without %.5f", folder, on.loss, off.loss);
    ok(equal(&on, &again), "recomputed layers drop the same, bit for bit");
    ok(equal(&on, &part) && equal(&on, &one), "and those of which a part, or one, is recomputed");
    ok(again.saved < part.saved && part.saved < one.saved && one.saved < on.saved,
       "memory saved for backward: full %zu, selective %zu, of one layer %zu, none %zu",
       again.saved, part.saved, one.saved, on.saved);
    ok(on.loss != other.loss, "another seed drops others: loss %.5f", other.loss);
    free(off.grad), free(on.grad), free(again.grad), free(other.grad);
    free(part.grad), free(one.grad);

    rows.nbatches = B;
    for (int b = 0; b < B; b++) {
        rows.batches[b] = rows.batches[0];
        rows.batches[b].B = 1;
        rows.batches[b].tokens = tokens + b * (T + 1);
        rows.batches[b].first_row = whole.batches[0].first_row + (uint64_t)b;
    }
    expect_close(&rows, &whole, "dropout row by row, and all rows at once");
}

/* ---- products in 8 bits ---------------------------------------------------------------------- */

static struct {
    bool alone;              /* each product rounds what it reads */
    int nproducts, nrounded; /* that read x; and those that rounded it */
    int ncodes;              /* that took w as codes */
    const char *dora;        /* a map with such an adapter; NULL: none */
} eights;

#define COUNTED(name, type)                                                                        \
    static int counted_##name(struct fsdp_lane *lane, const struct type *args, struct fsdp_err *e) \
    {                                                                                              \
        struct type own = *args;                                                                   \
        own.made = eights.alone ? NULL : own.made;                                                 \
        eights.nproducts += own.f8.dtype != 0;                                                     \
        eights.nrounded += own.f8.dtype && (!own.made || !*own.made);                              \
        eights.ncodes += own.w && own.w_amax;                                                      \
        return nn_cpu_##name(lane, &own, e);                                                       \
    }
COUNTED(linear_forward, nn_linear)
COUNTED(linear_backward_weight, nn_linear)

static void use_counted(struct model *m)
{
    static const char *const all[] = {"all-linear"};
    static struct nn_ops ops;

    ops = *m->nn;
    ops.linear_forward = counted_linear_forward;
    ops.linear_backward_weight = counted_linear_backward_weight;
    m->nn = &ops;
    if (eights.dora)
        stack_set_lora(
            m,
            &(struct model_lora){
                .r = 2, .scale = 1, .targets = &eights.dora, .ntargets = 1, .dora = true},
            &err);
    stack_set_f8(m, &(struct model_f8){FSDP_F8_E4M3, FSDP_F8_E4M3, NN_F8_TENSOR, all, 1, false},
                 &err);
}

/* Of q, k, v, o, gate, up and down, or of all without gate, 4 round what they read. */
static void test_eights(const char *folder, int nmaps)
{
    struct pass alone = plain(folder), shared = plain(folder);

    alone.use_ops = shared.use_ops = use_counted;
    eights.alone = true;
    eights.nproducts = eights.nrounded = 0;
    int rc = run(&alone);
    const int nproducts = eights.nproducts, nrounded = eights.nrounded;
    eights.alone = false;
    eights.nproducts = eights.nrounded = 0;
    rc |= run(&shared);
    ok(!rc && nproducts > 0 && nrounded == nproducts && eights.nproducts == nproducts &&
           eights.nrounded * nmaps == nproducts * 4,
       "%s: of %d products in 8 bits, %d round what they read", folder, eights.nproducts,
       eights.nrounded);
    ok(equal(&shared, &alone), "%s: the bits are those of products that all round it", folder);
    free(alone.grad), free(shared.grad);
}

/* A pass whose weights are gathered in 8 bits, with this codec. */
static int run_gathered(struct pass *p, const struct fsdp_gather_codec *codec)
{
    p->use_ops = use_counted;
    p->codec = codec;
    eights.nproducts = eights.ncodes = 0;
    return run(p);
}

/* Products take codes as they came, with the bits that they have of decoded values: `expected` of
 * them forward. */
static void test_gathered(const char *folder, int expected, const char *dora)
{
    struct fsdp_gather_codec without = fsdp_gather_float8;
    struct pass decoded = plain(folder), codes = plain(folder);

    eights.dora = dora;
    without.codes = FSDP_F32;
    int rc = run_gathered(&decoded, &without);
    const int none = eights.ncodes;
    rc |= run_gathered(&codes, &fsdp_gather_float8);
    ok(!rc && none == 0 && eights.ncodes == expected, "%s: %d products take codes%s%s", folder,
       eights.ncodes, dora ? ", with DoRA of " : "", dora ? dora : "");
    ok(equal(&codes, &decoded), "%s: the bits are those of decoded weights", folder);
    free(decoded.grad), free(codes.grad);
    eights.dora = NULL;
}

int main(void)
{
    static const char *const folders[] = {"gpt2-tiny", "llama-odd"};
    static const char *const adapted[] = {"mlp.c_proj", "down_proj"};

    if (fsdp_oob_self_create(&oob, &err))
        return 1;
    for (int i = 0; i < NROWS; i++)
        tokens[i] = (i * i * 7 + i * 3) % 53;
    for (int i = 0; i < 2; i++) {
        test_labels(folders[i]);
        test_documents(folders[i]);
        test_dropout(folders[i]);
        test_eights(folders[i], i ? 7 : 6);
        /* Of two layers, or three; an adapter of DoRA reads the values of its matrix. */
        test_gathered(folders[i], i ? 3 * 7 : 2 * 6, NULL);
        test_gathered(folders[i], i ? 3 * 6 : 2 * 5, adapted[i]);
    }
    oob->close(oob);
    return tap_done();
}
