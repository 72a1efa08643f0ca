/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Training equals PyTorch's: 20 steps of the reference run of a Llama under every strategy, world
 * size, accumulation and checkpointing of activations that its four rows a step allow, and ten of a
 * GPT-2 under some of them; both with units and checkpointing below the layer; a step of a model
 * with uneven sizes and tied weights; and world sizes that the rows of a step divide oddly, against
 * one process.
 */
#include "ref_run.h"

enum { MAX_STEPS = 20, ROWS = 4, MAX_TENSORS = 64 };

struct cell {
    struct ref_setup setup;
    const char *name;
    int nranks, nnodes, nsteps, nrows;
};

/* What rank 0 saw, and of every tensor's gradient at step 0 the squares of difference and size. */
struct outcome {
    double loss[MAX_STEPS], norm[MAX_STEPS];
    int ntensors;
    char tensor[MAX_TENSORS][64];
    double diff[MAX_TENSORS], size[MAX_TENSORS];
};

struct run {
    struct cell cell;
    const int32_t *tokens;
    const struct ref_tensors *grads;
    struct outcome *out;
};

/* ---- in a rank ------------------------------------------------------------------------------ */

struct grad_check {
    struct run *run;
    double scale; /* exp_avg after one step is scale times the gradient */
    int index;
    double sums[2 * MAX_TENSORS];
};

static int check_grad(void *ctx, enum fsdp_slice_kind kind, const struct fsdp_slice *slice,
                      const struct fsdp_slice_io *io, struct fsdp_err *err)
{
    struct grad_check *c = ctx;
    const char *name = slice->tensor.name, *end = strstr(name, ".exp_avg");
    char param[64];

    if (kind != FSDP_SLICE_OPTIM || !end || strcmp(end, ".exp_avg"))
        return FSDP_OK;
    snprintf(param, sizeof param, "%.*s", (int)(end - name - 6), name + 6); /* "state." */
    uint64_t row = fsdp_tensor_row_nelem(&slice->tensor), at = slice->box.offset[0] * row;
    uint64_t nelem = fsdp_box_nelem(&slice->box, slice->tensor.ndim);
    const float *want = ref_tensor(c->run->grads, param, fsdp_tensor_nelem(&slice->tensor));
    float *got = malloc(nelem * sizeof *got + 1);
    int i = c->index++, rc = want ? FSDP_OK : FSDP_ENOTFOUND;
    if (rc == FSDP_OK && nelem)
        rc = io->read(io->ctx, 0, got, nelem * sizeof *got, err);
    for (uint64_t k = 0; k < nelem && rc == FSDP_OK; k++) {
        double g = got[k] / c->scale, w = want[at + k];
        c->sums[2 * i] += (g - w) * (g - w);
        c->sums[2 * i + 1] += w * w;
    }
    snprintf(c->run->out->tensor[i], sizeof c->run->out->tensor[i], "%s", param);
    free(got);
    return rc;
}

static int check_grads(struct run *run, struct ref_rank *r, struct fsdp_oob *oob, double scale,
                       struct fsdp_err *err)
{
    struct grad_check c = {.run = run, .scale = scale};
    double all[8][2 * MAX_TENSORS];

    FSDP_TRY(fsdp_sync(r->f, err));
    FSDP_TRY(fsdp_state_each(r->f, check_grad, &c, err));
    FSDP_TRY(oob->allgather(oob, c.sums, sizeof c.sums, all, err));
    run->out->ntensors = c.index;
    for (int rank = 0; rank < oob->size && oob->rank == 0; rank++)
        for (int i = 0; i < c.index; i++) {
            run->out->diff[i] += all[rank][2 * i];
            run->out->size[i] += all[rank][2 * i + 1];
        }
    return FSDP_OK;
}

static int train(struct run *run, struct ref_rank *r, struct fsdp_oob *oob, struct fsdp_err *err)
{
    const struct cell *c = &run->cell;
    for (int step = 0; step < c->nsteps; step++) {
        struct fsdp_step_args args = {.step = step, .lr = 1e-3};
        double loss, norm;
        const int32_t *tokens = run->tokens + (size_t)step * c->nrows * (c->setup.T + 1);
        FSDP_TRY(ref_rank_step(r, &c->setup, tokens, c->nrows, args, &loss, &norm, err));
        if (oob->rank == 0) {
            run->out->loss[step] = loss;
            run->out->norm[step] = norm;
        }
        double clip = norm > 1 ? 1 / (norm + 1e-6) : 1;
        if (step == 0 && run->grads)
            FSDP_TRY(check_grads(run, r, oob, (1 - c->setup.opts.optim.betas[0]) * clip, err));
    }
    return FSDP_OK;
}

static int rank_main(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    struct run *run = arg;
    struct ref_rank r;
    struct fsdp_err err = FSDP_ERR_INIT;
    int rc = ref_rank_open(&r, &run->cell.setup, oob, nodes, &err);
    if (!rc)
        rc = train(run, &r, oob, &err);
    if (rc)
        fprintf(stderr, "rank %d: %s: %s\n", oob->rank, fsdp_status_name(rc), err.text);
    ref_rank_close(&r);
    return rc != 0;
}

/* ---- in the test ---------------------------------------------------------------------------- */

static struct outcome *run_cell(const struct cell *cell, const int32_t *tokens,
                                const struct ref_tensors *grads)
{
    struct run run = {*cell, tokens, grads, ref_shared(sizeof(struct outcome))};
    if (ranks_run(cell->nranks, cell->nnodes, 100, rank_main, &run, NULL) == 0)
        return run.out;
    munmap(run.out, sizeof *run.out);
    return NULL;
}

static struct ref_setup setup_of(const char *folder, enum fsdp_strategy strategy, int B, int len)
{
    struct ref_setup setup = {.folder = folder, .B = B, .T = len, .opts = FSDP_OPTS_INIT};
    setup.opts.sharding_strategy = strategy;
    setup.opts.optim.decay = FSDP_DECAY_ALL;
    return setup;
}

/* Losses within loss_tol, norms within norm_tol relative, of got against want. */
static bool close_to(const char *what, const struct outcome *got, const double *loss,
                     const double *norm, int nsteps)
{
    double worst_loss = 0, worst_norm = 0;
    for (int s = 0; s < nsteps; s++) {
        worst_loss = fmax(worst_loss, fabs(got->loss[s] - loss[s]));
        worst_norm = fmax(worst_norm, fabs(got->norm[s] - norm[s]) / norm[s]);
    }
    return ok(worst_loss <= 2e-6 && worst_norm <= 3e-6, "%s: losses within %.1e, norms %.1e", what,
              worst_loss, worst_norm);
}

static void check_gradients(const char *what, const struct outcome *got, int ntensors)
{
    double worst = 0;
    const char *name = "none";
    for (int i = 0; i < got->ntensors; i++) {
        double error = sqrt(got->diff[i] / got->size[i]);
        if (!(error <= worst)) {
            worst = error;
            name = got->tensor[i];
        }
    }
    ok(worst <= 1e-5 && got->ntensors == ntensors, "%s: %d gradients, worst %.1e (%s)", what,
       got->ntensors, worst, name);
}

static const struct {
    enum fsdp_strategy strategy;
    const char *name;
    bool two_level; /* of four ranks on two nodes */
} strategies[] = {{FSDP_FULL_SHARD, "FULL_SHARD", false},
                  {FSDP_SHARD_GRAD_OP, "SHARD_GRAD_OP", false},
                  {FSDP_HYBRID_SHARD, "HYBRID_SHARD", false},
                  {FSDP_NO_SHARD, "NO_SHARD", false},
                  {FSDP_HYBRID_SHARD_ZERO2, "HYBRID_SHARD_ZERO2", false},
                  {FSDP_ZERO1, "ZERO1", false},
                  {FSDP_FULL_SHARD, "FULL_SHARD on two levels", true}};
enum { NSTRATEGIES = sizeof strategies / sizeof strategies[0] };

/* A run that PyTorch made: steps of ROWS rows of T + 1 tokens. */
struct reference {
    const char *folder;
    int nsteps, T, ntensors;
    int32_t *tokens;
    struct ref_tensors grads;
    double loss[MAX_STEPS], norm[MAX_STEPS];
};

static void test_reference(const struct reference *ref, int s, int nranks, int accumulation, int ac,
                           bool threaded)
{
    char what[128];
    const bool by_node = strategies[s].two_level ||
                         fsdp_strategy_info(strategies[s].strategy)->group == FSDP_SHARD_OVER_NODE;
    struct cell c = {.nranks = nranks, .nsteps = ref->nsteps, .nrows = ROWS};
    if (strategies[s].two_level && nranks < 4)
        return;
    c.nnodes = by_node && nranks > 1 ? 2 : 1;
    c.setup = setup_of(ref->folder, strategies[s].strategy, ROWS / nranks / accumulation, ref->T);
    c.setup.opts.accumulation = accumulation;
    c.setup.opts.activation_checkpointing = ac;
    c.setup.threaded = threaded;
    c.setup.two_level = strategies[s].two_level;
    snprintf(what, sizeof what, "%s, %s, %d ranks, accumulation %d%s%s", ref->folder,
             strategies[s].name, nranks, accumulation, ac == FSDP_AC_FULL ? ", recompute" : "",
             threaded ? ", threaded lanes" : "");
    struct outcome *got = run_cell(&c, ref->tokens, &ref->grads);
    if (!ok(got != NULL, "%s: runs", what))
        return;
    close_to(what, got, ref->loss, ref->norm, ref->nsteps);
    check_gradients(what, got, ref->ntensors);
    munmap(got, sizeof *got);
}

/* ---- below the layer ------------------------------------------------------------------------- */

/* Units and recomputed modules other than whole layers; patterns after the layers' name. */
static const struct below {
    const char *text;
    const char *classes[3], *modules[3];
    int ac;
    const char *covered[3];
} below[] = {
    {"units of attention and MLP", {"Attention", "MLP"}, {0}, FSDP_AC_NONE, {0}},
    {"units of attention and MLP, recompute", {"Attention", "MLP"}, {0}, FSDP_AC_FULL, {0}},
    {"MLPs inside layers", {"Layer", "MLP"}, {0}, FSDP_AC_FULL, {"*.mlp"}},
    {"attention inside layers", {"Layer", "Attention"}, {0}, FSDP_AC_SELECTIVE, {"*.attention"}},
    {"a layer and the other's MLP", {0}, {"0", "1.mlp"}, FSDP_AC_SELECTIVE, {0}},
    {"units are layers, attention and MLP recompute",
     {"Layer"},
     {0},
     FSDP_AC_FULL,
     {"*.attention", "*.mlp"}},
    {"a layer and the other's attention recompute",
     {"MLP"},
     {0},
     FSDP_AC_FULL,
     {"0", "*.attention"}},
};
enum { NBELOW = sizeof below / sizeof below[0] };

/* What a family calls them. */
struct below_names {
    const char *layers, *layer_class, *attention_class, *attention, *mlp_class;
};

struct below_texts {
    char text[3][64];
    const char *list[4]; /* ends with NULL */
};

static const char *const *below_classes(struct below_texts *out, const struct below_names *names,
                                        const char *const classes[3])
{
    int n = 0;
    for (int i = 0; i < 3 && classes[i]; i++)
        out->list[n++] = classes[i][0] == 'L'   ? names->layer_class
                         : classes[i][0] == 'A' ? names->attention_class
                                                : names->mlp_class;
    return n ? out->list : NULL;
}

static const char *const *below_patterns(struct below_texts *out, const struct below_names *names,
                                         const char *const patterns[3])
{
    int n = 0;
    for (; n < 3 && patterns[n]; n++) {
        const char *inside = strstr(patterns[n], ".attention");
        snprintf(out->text[n], sizeof out->text[n], "%s.%.*s%s", names->layers,
                 inside ? (int)(inside - patterns[n]) : (int)strlen(patterns[n]), patterns[n],
                 inside ? names->attention : "");
        out->list[n] = out->text[n];
    }
    return n ? out->list : NULL;
}

static void test_below(const struct reference *ref, const struct below_names *names, int b, int s)
{
    struct below_texts classes = {0}, modules = {0}, covered = {0};
    char what[160];
    const bool two_level = strategies[s].two_level;
    const bool by_node =
        two_level || fsdp_strategy_info(strategies[s].strategy)->group == FSDP_SHARD_OVER_NODE;
    const int nranks = two_level || (b + s) % 2 ? 4 : 2;
    struct cell c = {.nranks = nranks, .nsteps = ref->nsteps, .nrows = ROWS};

    c.nnodes = by_node ? 2 : 1;
    c.setup = setup_of(ref->folder, strategies[s].strategy, 1, ref->T);
    c.setup.opts.accumulation = ROWS / nranks;
    c.setup.two_level = two_level;
    c.setup.threaded = (b + s) % 3 == 0;
    c.setup.opts.wrap_classes = below_classes(&classes, names, below[b].classes);
    c.setup.opts.wrap_modules = below_patterns(&modules, names, below[b].modules);
    if (c.setup.opts.wrap_modules)
        c.setup.opts.wrap_policy = FSDP_WRAP_LIST;
    c.setup.opts.activation_checkpointing = below[b].ac;
    c.setup.opts.checkpoint_modules = below_patterns(&covered, names, below[b].covered);
    snprintf(what, sizeof what, "%s, %s, %s, %d ranks%s", ref->folder, below[b].text,
             strategies[s].name, nranks, c.setup.threaded ? ", threaded lanes" : "");
    struct outcome *got = run_cell(&c, ref->tokens, &ref->grads);
    if (!ok(got != NULL, "%s: runs", what))
        return;
    close_to(what, got, ref->loss, ref->norm, ref->nsteps);
    check_gradients(what, got, ref->ntensors);
    munmap(got, sizeof *got);
}

static void test_all_below(const struct reference *ref, const struct below_names *names)
{
    for (int b = 0; b < NBELOW; b++)
        for (int s = 0; s < NSTRATEGIES; s++)
            test_below(ref, names, b, s);
}

static void load_reference(struct reference *ref)
{
    char expected[64];
    snprintf(expected, sizeof expected, "%s/expected", ref->folder);
    size_t nbytes, want = (size_t)ref->nsteps * ROWS * (size_t)(ref->T + 1);
    uint16_t *raw = ref_read(ref_path(expected, "batches.u16"), &nbytes);
    json_t *json = json_load_file(ref_path(expected, "ref.json"), 0, NULL);
    size_t ntokens = nbytes / 2;

    ok(ntokens == want, "%s has %d steps", ref->folder, ref->nsteps);
    ref->tokens = malloc(ntokens * sizeof *ref->tokens);
    for (size_t i = 0; i < ntokens; i++)
        ref->tokens[i] = raw[i];
    for (int s = 0; s < ref->nsteps; s++) {
        ref->loss[s] = ref_number(json, "fp64", "loss", s);
        ref->norm[s] = ref_number(json, "fp64", "grad_norm", s);
    }
    ref->grads = ref_tensors_open(ref_path(expected, "grads_step0.safetensors"));
    json_decref(json);
    free(raw);
}

static void free_reference(struct reference *ref)
{
    ref_tensors_close(&ref->grads);
    free(ref->tokens);
}

/* One step of the uneven model, on one rank and on three. */
static void test_uneven(int nranks, int ac)
{
    char what[64];
    json_t *json = json_load_file(ref_path("llama-odd/expected", "ref.json"), 0, NULL);
    json_t *rows = json_object_get(json, "tokens");
    struct ref_tensors grads =
        ref_tensors_open(ref_path("llama-odd/expected", "grads.safetensors"));
    const double loss = ref_number(json, NULL, "loss", -1);
    const double norm = ref_number(json, NULL, "grad_norm", -1);
    struct cell c = {.nranks = nranks, .nnodes = 1, .nsteps = 1, .nrows = 3};
    int32_t tokens[3 * 22];

    for (int i = 0; i < 3 * 22; i++)
        tokens[i] = (int32_t)json_integer_value(
            json_array_get(json_array_get(rows, (size_t)(i / 22)), (size_t)(i % 22)));
    c.setup = setup_of("llama-odd", FSDP_FULL_SHARD, 3 / nranks, 21);
    c.setup.opts.activation_checkpointing = ac;
    snprintf(what, sizeof what, "uneven model, %d ranks%s", nranks, ac ? ", recompute" : "");
    struct outcome *got = run_cell(&c, tokens, &grads);
    if (ok(got != NULL, "%s: runs", what)) {
        close_to(what, got, &loss, &norm, 1);
        check_gradients(what, got, 29);
        munmap(got, sizeof *got);
    }
    ref_tensors_close(&grads);
    json_decref(json);
}

/* 15 rows a step: 1, 3 and 5 ranks give the same trajectory. */
static void test_fifteen(const struct reference *ref)
{
    struct cell one = {.nranks = 1, .nnodes = 1, .nsteps = 5, .nrows = 15};
    one.setup = setup_of(ref->folder, FSDP_FULL_SHARD, 15, ref->T);
    struct outcome *want = run_cell(&one, ref->tokens, NULL);

    if (!ok(want && want->loss[4] > 1 && want->loss[4] < want->loss[0], "15 rows on one rank"))
        return;
    for (int k = 0; k < 2 * NSTRATEGIES; k++) {
        char what[96];
        const int s = k / 2;
        struct cell c = one;
        if (strategies[s].two_level)
            continue;
        const bool hybrid =
            fsdp_strategy_info(strategies[s].strategy)->group == FSDP_SHARD_OVER_NODE;
        c.nranks = k % 2 ? 5 : 3;
        c.nnodes = hybrid ? c.nranks : 1;
        c.setup.B = 15 / c.nranks;
        c.setup.opts.sharding_strategy = strategies[s].strategy;
        if (k % 2 == 0) { /* five rows a rank, one at a time */
            c.setup.opts.accumulation = c.setup.B;
            c.setup.B = 1;
        }
        snprintf(what, sizeof what, "15 rows, %s, %d ranks, accumulation %d", strategies[s].name,
                 c.nranks, c.setup.opts.accumulation);
        struct outcome *got = run_cell(&c, ref->tokens, NULL);
        if (ok(got != NULL, "%s: runs", what)) {
            close_to(what, got, want->loss, want->norm, 5);
            munmap(got, sizeof *got);
        }
    }
    munmap(want, sizeof *want);
}

/* Every pair of world size and strategy, with accumulation and recomputation changing between them.
 * The key third of c_attn.bias has no gradient but rounding (attention does not feel it), and the
 * rest of that tensor is what its comparison measures. */
static void test_gpt2(void)
{
    struct reference ref = {.folder = "gpt2-tiny", .nsteps = 10, .T = 24, .ntensors = 28};
    load_reference(&ref);
    for (int k = 0; k < 3; k++)
        for (int s = 0; s < NSTRATEGIES; s++) {
            const int accumulation = k < 2 ? 1 + (k + s) % 2 : 1, ac = (k + s / 2) % 2;
            test_reference(&ref, s, 1 << k, accumulation, ac ? FSDP_AC_FULL : FSDP_AC_NONE, false);
        }
    test_reference(&ref, 0, 1, 4, FSDP_AC_FULL, false);
    test_reference(&ref, 0, 2, 2, FSDP_AC_FULL, true);
    test_all_below(&ref, &(struct below_names){"transformer.h", "GPT2Block", "GPT2Attention",
                                               ".attn", "GPT2MLP"});
    free_reference(&ref);
}

int main(void)
{
    struct reference ref = {.folder = "llama-tiny", .nsteps = 20, .T = 32, .ntensors = 21};
    load_reference(&ref);
    for (int nranks = 1; nranks <= 4; nranks *= 2)
        for (int s = 0; s < NSTRATEGIES; s++)
            for (int accumulation = 1; accumulation <= 2 && nranks * accumulation <= ROWS;
                 accumulation++)
                for (int ac = FSDP_AC_NONE; ac <= FSDP_AC_FULL; ac++)
                    test_reference(&ref, s, nranks, accumulation, ac, false);
    test_reference(&ref, 0, 2, 2, FSDP_AC_FULL, true);
    test_reference(&ref, 2, 4, 1, FSDP_AC_NONE, true);
    test_uneven(1, FSDP_AC_NONE);
    test_uneven(1, FSDP_AC_FULL);
    test_uneven(3, FSDP_AC_NONE);
    test_fifteen(&ref);
    test_all_below(&ref, &(struct below_names){"model.layers", "LlamaDecoderLayer",
                                               "LlamaAttention", ".self_attn", "LlamaMLP"});
    free_reference(&ref);
    test_gpt2();
    return tap_done();
}
