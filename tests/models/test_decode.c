/* SPDX-License-Identifier: Apache-2.0 */
/* Forward passes: the engine's logits and evaluation, and decoding with a key-value cache, against
 * PyTorch's logits; refusals of bad batches. */
#include "ref_run.h"

static struct fsdp_err err = FSDP_ERR_INIT;

static double worst_difference(const float *a, const float *b, size_t nelem)
{
    double worst = 0;
    for (size_t i = 0; i < nelem; i++) {
        double d = fabs((double)a[i] - (double)b[i]);
        worst = d <= worst ? worst : isfinite(d) ? d : 1e30;
    }
    return worst;
}

/* ---- decoding ------------------------------------------------------------------------------- */

/* A model on plain memory. */
struct loaded {
    const struct model_ops *ops;
    struct model *model;
    struct fsdp_module_tree *tree;
    struct ref_tensors weights;
    const float *param[64];
    struct fsdp_device *device;
    struct fsdp_lane *lane;
};

static int create(struct loaded *l, const char *config)
{
    int rc = model_find(&l->ops, config, &err);
    rc = rc ? rc : l->ops->create(&l->model, config, &err);
    rc = rc ? rc : fsdp_module_tree_create(&l->tree, &err);
    rc = rc ? rc : l->ops->describe(l->model, l->tree, 1, 1, &err);
    rc = rc ? rc : fsdp_device_open(&l->device, "cpu", 0, &err);
    return rc ? rc : fsdp_lane_create(&l->lane, l->device, "compute", &err);
}

static bool load(struct loaded *l, const char *folder)
{
    int rc = create(l, ref_path(folder, "config.json"));
    if (!ok(rc == FSDP_OK, "%s: a model on plain memory%s%s", folder, rc ? ": " : "",
            rc ? err.text : ""))
        return false;
    l->weights = ref_tensors_open(ref_path(folder, "model.safetensors"));
    for (int i = 0; i < fsdp_param_count(l->tree); i++) {
        struct fsdp_tensor tensor = fsdp_param_tensor(l->tree, i);
        l->param[i] = ref_tensor(&l->weights, tensor.name, fsdp_tensor_nelem(&tensor));
        if (!l->param[i])
            return ok(false, "%s is among the weights", tensor.name);
    }
    return true;
}

static void unload(struct loaded *l)
{
    fsdp_lane_destroy(l->lane);
    fsdp_device_close(l->device);
    fsdp_module_tree_destroy(l->tree);
    l->ops->destroy(l->model);
    if (l->weights.data)
        ref_tensors_close(&l->weights);
}

static const struct model_decoder_opts *room_for(int max_tokens)
{
    static struct model_decoder_opts opts;
    opts.max_tokens = max_tokens;
    return &opts;
}

/* Gives the tokens in pieces of `piece` and compares all logits. */
static void decode_in_pieces(struct loaded *l, const int32_t *tokens, int ntokens, int piece,
                             const float *want, const char *what)
{
    const struct model_ops *ops = l->ops;
    const size_t V = (size_t)ops->vocab_size(l->model);
    float *got = malloc((size_t)ntokens * V * sizeof *got);
    struct model_decoder *d = NULL;
    int rc = ops->decoder_create(&d, l->model, l->param, l->lane, room_for(ntokens), &err);

    for (int done = 0; done < ntokens && rc == FSDP_OK; done += piece) {
        int n = ntokens - done < piece ? ntokens - done : piece;
        rc = ops->decode(d, 0, tokens + done, n, true, got + (size_t)done * V, &err);
    }
    double worst = rc ? 1e30 : worst_difference(got, want, (size_t)ntokens * V);
    ok(worst < 1e-5, "%s, %d tokens at a time: logits within %.1e", what, piece, worst);
    ok(rc == FSDP_OK && ops->decode(d, 0, tokens, 1, false, got, &err) == FSDP_EINVAL &&
           strstr(err.text, "room"),
       "a token too many: %s", err.text);
    ops->decoder_destroy(d);
    free(got);
}

static void test_decoding(const char *folder, const int32_t *tokens, int ntokens,
                          const char *logits)
{
    struct loaded l = {0};
    if (!load(&l, folder))
        return;
    const struct model_ops *ops = l.ops;
    const size_t V = (size_t)ops->vocab_size(l.model);
    struct ref_tensors expected = ref_tensors_open(ref_path(folder, logits));
    const json_t *shape = json_object_get(json_object_get(expected.header, "logits"), "shape");
    size_t rows = (size_t)json_integer_value(json_array_get(shape, 0));
    const float *want = ref_tensor(&expected, "logits", rows * (size_t)ntokens * V);

    ok(want != NULL, "%s: expected logits", folder);
    decode_in_pieces(&l, tokens, ntokens, ntokens, want, folder);
    decode_in_pieces(&l, tokens, ntokens, 1, want, folder);
    decode_in_pieces(&l, tokens, ntokens, 5, want, folder);

    float *last = malloc(V * sizeof *last);
    int32_t wrong = (int32_t)V;
    struct model_decoder *d = NULL;
    ok(!ops->decoder_create(&d, l.model, l.param, l.lane, room_for(ntokens), &err) &&
           !ops->decode(d, 0, tokens, ntokens, false, last, &err) &&
           worst_difference(last, want + (size_t)(ntokens - 1) * V, V) < 1e-5,
       "%s: logits after the last token alone", folder);
    ops->decoder_destroy(d);
    d = NULL;
    ok(!ops->decoder_create(&d, l.model, l.param, l.lane, room_for(ntokens), &err) &&
           ops->decode(d, 0, &wrong, 1, false, last, &err) == FSDP_EINVAL &&
           strstr(err.text, "vocabulary"),
       "%s: a token outside the vocabulary: %s", folder, err.text);
    ops->decoder_destroy(d);
    ok(ops->decoder_create(&d, l.model, l.param, l.lane, room_for(65), &err) == FSDP_EINVAL,
       "%s: more tokens than positions: %s", folder, err.text);
    free(last);
    ref_tensors_close(&expected);
    unload(&l);
}

/* ---- several sequences ----------------------------------------------------------------------- */

enum { NSEQ = 4, PROMPT = 5, STEPS = 9 };

/* Sequence s gets a prompt of PROMPT + s tokens and then STEPS tokens one by one; out gets the
 * logits of each step (NSEQ, STEPS, V). `live` are the sequences that take part; another one, of
 * which the first s tokens are kept, was there before. */
static int decode_live(const struct loaded *l, const struct model_decoder_opts *opts, unsigned live,
                       float *out)
{
    const size_t V = (size_t)l->ops->vocab_size(l->model);
    struct model_decoder *d = NULL;
    int32_t tokens[NSEQ], text[32];
    float *logits = malloc(NSEQ * V * sizeof *logits);
    int rc = l->ops->decoder_create(&d, l->model, l->param, l->lane, opts, &err);

    for (int s = 0; s < NSEQ && rc == FSDP_OK; s++) {
        for (int i = 0; i < 32; i++)
            text[i] = (i * 7 + s * 3 + 1) % 50;
        if (live >> s & 1) {
            /* The first s tokens stay there. */
            rc = s ? l->ops->decode(d, s, text, s, false, logits, &err) : FSDP_OK;
            rc = rc ? rc : l->ops->decode(d, s, text + 9, 3, false, logits, &err);
            if (l->ops->decoder_truncate(d, s, 20) != s + 3 ||
                l->ops->decoder_truncate(d, s, s) != s)
                rc = FSDP_EINTERNAL;
            rc = rc ? rc : l->ops->decode(d, s, text + s, PROMPT, false, logits, &err);
        }
    }
    for (int i = 0; i < STEPS && rc == FSDP_OK; i++) {
        for (int s = 0; s < NSEQ; s++)
            tokens[s] = live >> s & 1 ? (i * 11 + s * 5 + 2) % 50 : -1;
        rc = l->ops->decode_each(d, tokens, logits, &err);
        for (size_t s = 0; s < NSEQ; s++)
            memcpy(out + (s * STEPS + (size_t)i) * V, logits + s * V, V * sizeof *out);
    }
    l->ops->decoder_destroy(d);
    free(logits);
    return rc;
}

/* The same of one sequence in a decoder of its own, by decode alone. */
static int decode_alone(const struct loaded *l, int s, enum fsdp_dtype kv_dtype, float *out)
{
    const size_t V = (size_t)l->ops->vocab_size(l->model);
    const struct model_decoder_opts opts = {.max_tokens = 32, .kv_dtype = kv_dtype};
    struct model_decoder *d = NULL;
    int32_t text[32];
    int rc = l->ops->decoder_create(&d, l->model, l->param, l->lane, &opts, &err);

    for (int i = 0; i < 32; i++)
        text[i] = (i * 7 + s * 3 + 1) % 50;
    rc = rc ? rc : l->ops->decode(d, 0, text, PROMPT + s, false, out, &err);
    for (int i = 0; i < STEPS && rc == FSDP_OK; i++) {
        const int32_t token = (i * 11 + s * 5 + 2) % 50;
        rc = l->ops->decode(d, 0, &token, 1, false, out + (size_t)i * V, &err);
    }
    l->ops->decoder_destroy(d);
    return rc;
}

static void test_sequences(const char *folder)
{
    struct loaded l = {0};
    if (!load(&l, folder))
        return;
    const size_t V = (size_t)l.ops->vocab_size(l.model), one = STEPS * V;
    const struct model_decoder_opts opts = {.max_tokens = 32, .nsequences = NSEQ};
    float *all = malloc(NSEQ * one * sizeof *all), *some = malloc(NSEQ * one * sizeof *some);
    float *alone = malloc(one * sizeof *alone);
    double worst = 0;
    int rc = decode_live(&l, &opts, 15, all);

    for (int s = 0; s < NSEQ && rc == FSDP_OK; s++) {
        rc = decode_alone(&l, s, FSDP_F32, alone);
        worst = fmax(worst, worst_difference(all + (size_t)s * one, alone, one));
    }
    ok(rc == FSDP_OK && worst < 1e-5, "%s: %d sequences at once are as each alone: within %.1e",
       folder, NSEQ, worst);
    rc = rc ? rc : decode_live(&l, &opts, 4, some);
    ok(rc == FSDP_OK && !memcmp(some + 2 * one, all + 2 * one, one * sizeof *all),
       "%s: one whose neighbours are idle gets the same bits", folder);
    free(all), free(some), free(alone);
    unload(&l);
}

static void test_kv_dtype(const char *folder)
{
    static const enum fsdp_dtype dtypes[] = {FSDP_F32, FSDP_BF16, FSDP_F16};
    static const double bounds[] = {0, 0.1, 0.01};
    struct loaded l = {0};
    if (!load(&l, folder))
        return;
    const size_t V = (size_t)l.ops->vocab_size(l.model), one = STEPS * V;
    float *logits = malloc(one * sizeof *logits), *wide = malloc(one * sizeof *wide);
    size_t cache[3] = {0}, whole;
    int rc = decode_alone(&l, 1, FSDP_F32, wide);

    for (int i = 0; i < 3; i++) {
        const struct model_decoder_opts opts = {.max_tokens = 32, .kv_dtype = dtypes[i]};
        struct model_decoder *d = NULL;
        rc = rc ? rc : l.ops->decoder_create(&d, l.model, l.param, l.lane, &opts, &err);
        if (rc == FSDP_OK)
            l.ops->decoder_nbytes(d, &cache[i], &whole);
        l.ops->decoder_destroy(d);
        rc = rc ? rc : decode_alone(&l, 1, dtypes[i], logits);
        const double worst = rc ? 1e30 : worst_difference(logits, wide, one);
        ok(worst <= bounds[i] && (i == 0 || (worst > 1e-7 && 2 * cache[i] == cache[0])),
           "%s: keys and values of %s, %zu bytes: logits within %.1e", folder,
           fsdp_dtype_name(dtypes[i]), cache[i], worst);
    }
    free(logits), free(wide);
    unload(&l);
}

/* ---- long prompts ---------------------------------------------------------------------------- */

/* Prompts longer than one piece of the decoder's memory are the same text in any pieces. */
static void test_long_prompt(const char *config)
{
    enum { N = 600, V = 31, NWEIGHTS = 16384 };
    struct loaded l = {0};
    float *weights = malloc(NWEIGHTS * sizeof *weights), *logits[2];
    int32_t tokens[N];
    FILE *file = fopen("long-config.json", "w");

    fputs(config, file);
    fclose(file);
    for (int i = 0; i < NWEIGHTS; i++)
        weights[i] = (float)((i * 2654435761u >> 8) % 1000) / 1000 - 0.5f;
    for (int i = 0; i < N; i++)
        tokens[i] = (i * i + 3) % V;
    int rc = create(&l, "long-config.json");
    for (int i = 0; rc == FSDP_OK && i < fsdp_param_count(l.tree); i++)
        l.param[i] = weights + 7 * i;
    for (int k = 0; k < 2; k++) {
        struct model_decoder *d = NULL;
        logits[k] = malloc((size_t)N * V * sizeof(float));
        rc = rc ? rc : l.ops->decoder_create(&d, l.model, l.param, l.lane, room_for(N), &err);
        for (int i = 0; rc == FSDP_OK && i < N; i += k ? 1 : N)
            rc = l.ops->decode(d, 0, tokens + i, k ? 1 : N, true, logits[k] + (size_t)i * V, &err);
        l.ops->decoder_destroy(d);
    }
    ok(rc == FSDP_OK && worst_difference(logits[0], logits[1], (size_t)N * V) < 1e-4,
       "%s: 600 tokens at once and one by one agree%s%s", l.ops->family(l.model), rc ? ": " : "",
       rc ? err.text : "");
    unload(&l);
    remove("long-config.json");
    free(weights), free(logits[0]), free(logits[1]);
}

/* ---- through the engine --------------------------------------------------------------------- */

static int evaluate(struct ref_rank *r, const struct model_batch *batch, double *loss,
                    float *logits)
{
    *loss = 0;
    FSDP_TRY(fsdp_micro_begin(r->f, FSDP_EVAL, 0, &err));
    FSDP_TRY(logits ? r->ops->logits(r->model, r->f, batch, logits, &err)
                    : r->ops->run(r->model, r->f, batch, false, loss, &err));
    FSDP_TRY(fsdp_micro_end(r->f, &err));
    return fsdp_sync(r->f, &err);
}

/* Mean negative log-likelihood of the targets under logits, in fp64. */
static double loss_of(const float *logits, const int32_t *tokens, int B, int T, int V)
{
    double loss = 0;
    for (int b = 0; b < B; b++)
        for (int t = 0; t < T; t++, logits += V) {
            double sum = 0;
            for (int i = 0; i < V; i++)
                sum += exp(logits[i]);
            loss += log(sum) - logits[tokens[b * (T + 1) + t + 1]];
        }
    return loss;
}

static void test_refusals(struct ref_rank *r, const int32_t *tokens, int T, int V)
{
    const size_t ntokens = 4 * (size_t)(T + 1);
    int32_t *bad = malloc(ntokens * sizeof *bad);
    double loss = 0;
    struct model_batch batch = {.tokens = bad, .B = 4, .T = T, .loss_scale = 1};
    char want[2][64];

    snprintf(want[0], sizeof want[0], "token %d at row 2, position 7", V);
    snprintf(want[1], sizeof want[1], "described for 4 x %d", T);
    memcpy(bad, tokens, ntokens * sizeof *bad);
    bad[2 * (T + 1) + 7] = V;
    ok(evaluate(r, &batch, &loss, NULL) == FSDP_EINVAL && strstr(err.text, want[0]),
       "bad token: %s", err.text);
    fsdp_step_reset(r->f);
    batch.tokens = tokens;
    batch.B = 5;
    ok(evaluate(r, &batch, &loss, NULL) == FSDP_EINVAL && strstr(err.text, want[1]),
       "batch too large: %s", err.text);
    fsdp_step_reset(r->f);
    batch.B = 4;
    int32_t *labels = calloc(ntokens, sizeof *labels), *starts = calloc(ntokens, sizeof *starts);
    batch.labels = labels;
    batch.starts = starts;
    labels[T + 3] = -5;
    ok(evaluate(r, &batch, &loss, NULL) == FSDP_EINVAL &&
           strstr(err.text, "label -5 at row 1, position 3"),
       "bad label: %s", err.text);
    fsdp_step_reset(r->f);
    labels[T + 3] = MODEL_IGNORE;
    starts[2 * T + 4] = 3;
    ok(evaluate(r, &batch, &loss, NULL) == FSDP_EINVAL &&
           strstr(err.text, "row 2, position 4 is said to be in a document that begins at 3"),
       "bad document: %s", err.text);
    fsdp_step_reset(r->f);
    starts[2 * T + 4] = 0;
    ok(evaluate(r, &batch, &loss, NULL) == FSDP_OK && loss > 0, "after a reset all is well");
    free(bad), free(labels), free(starts);
}

static void test_engine(struct fsdp_oob *oob, const char *folder, const int32_t *tokens, int T,
                        int V)
{
    enum { B = 4 };
    static const int node_of[1];
    const struct fsdp_node_map nodes = {.nranks = 1, .nnodes = 1, .node_of = node_of};
    struct ref_setup setup = {.folder = folder, .B = B, .T = T, .opts = FSDP_OPTS_INIT};
    struct ref_tensors expected =
        ref_tensors_open(ref_path(folder, "expected/logits_step0.safetensors"));
    const size_t nelem = (size_t)B * (size_t)T * (size_t)V;
    const float *want = ref_tensor(&expected, "logits", nelem);
    float *logits = malloc(nelem * sizeof *logits);
    struct model_batch batch = {.tokens = tokens, .B = B, .T = T, .loss_scale = 1};
    struct ref_rank r;
    double loss;

    int rc = ref_rank_open(&r, &setup, oob, &nodes, &err);
    if (ok(rc == FSDP_OK, "%s: an engine%s%s", folder, rc ? ": " : "", rc ? err.text : "")) {
        rc = evaluate(&r, &batch, &loss, logits);
        double worst = worst_difference(logits, want, nelem);
        ok(!rc && worst < 1e-5, "the engine's logits are within %.1e", worst);
        double all = loss_of(want, tokens, B, T, V);
        rc = evaluate(&r, &batch, &loss, NULL);
        ok(!rc && fabs(loss - all) < 1e-6 * all,
           "evaluation: loss %.9g, of the reference's logits %.9g", loss, all);
        /* A smaller batch than described, as at the end of an evaluation set. */
        batch.B = 1;
        double one = loss_of(want, tokens, 1, T, V);
        rc = evaluate(&r, &batch, &loss, NULL);
        ok(!rc && fabs(loss - one) < 1e-6 * one, "one row: loss %.9g, expected %.9g", loss, one);
        test_refusals(&r, tokens, T, V);
    }
    ref_rank_close(&r);
    ref_tensors_close(&expected);
    free(logits);
}

/* Initial values of a GPT-2: matrices 0.02, those that end on the residual stream 0.02 / sqrt(2 *
 * 2), norms one, biases zero. */
static int check_init(void *ctx, enum fsdp_slice_kind kind, const struct fsdp_slice *slice,
                      const struct fsdp_slice_io *io, struct fsdp_err *e)
{
    const char *name = slice->tensor.name;
    const uint64_t nelem = fsdp_tensor_nelem(&slice->tensor);
    float *x = malloc(nelem * sizeof *x);
    double sum = 0, sq = 0;
    int rc = kind == FSDP_SLICE_MODEL ? io->read(io->ctx, 0, x, nelem * sizeof *x, e) : FSDP_OK;

    (void)ctx;
    if (kind == FSDP_SLICE_MODEL) {
        const bool is_norm = strstr(name, "ln_") && strstr(name, ".weight");
        const double mean = is_norm ? 1 : 0;
        double std = strstr(name, "c_proj.weight") ? 0.01 : 0.02;
        std = slice->tensor.ndim < 2 ? 0 : std;
        for (uint64_t i = 0; i < nelem; i++)
            sum += x[i] / (double)nelem;
        for (uint64_t i = 0; i < nelem; i++)
            sq += (x[i] - sum) * (x[i] - sum) / (double)nelem;
        ok(!rc && fabs(sum - mean) < 0.1 * std + 1e-9 && fabs(sqrt(sq) - std) < 0.08 * std + 1e-9,
           "%s begins with mean %.2g and deviation %.2g", name, sum, sqrt(sq));
    }
    free(x);
    return rc;
}

static void test_init(struct fsdp_oob *oob)
{
    static const int node_of[1];
    const struct fsdp_node_map nodes = {.nranks = 1, .nnodes = 1, .node_of = node_of};
    struct ref_setup setup = {.folder = "gpt2-tiny", .B = 1, .T = 8, .opts = FSDP_OPTS_INIT};
    struct ref_rank r;

    int rc = ref_rank_open(&r, &setup, oob, &nodes, &err);
    rc = rc ? rc : fsdp_init_params(r.f, &err);
    rc = rc ? rc : fsdp_sync(r.f, &err);
    rc = rc ? rc : fsdp_state_each(r.f, check_init, NULL, &err);
    ok(rc == FSDP_OK, "initial values%s%s", rc ? ": " : "", rc ? err.text : "");
    ref_rank_close(&r);
}

static void test_describe(void)
{
    struct model *model;
    struct fsdp_module_tree *tree;
    if (!ok(!model_decoder_ops.create(&model, ref_path("llama-tiny", "config.json"), &err) &&
                !fsdp_module_tree_create(&tree, &err),
            "a model"))
        return;
    ok(model_decoder_ops.describe(model, tree, 1, 65, &err) == FSDP_EINVAL &&
           strstr(err.text, "max_position_embeddings (64)"),
       "too long: %s", err.text);
    ok(model_decoder_ops.describe(model, tree, 0, 5, &err) == FSDP_EINVAL, "no rows: %s", err.text);
    ok(model_decoder_ops.describe(model, tree, 1 << 30, 64, &err) == FSDP_EINVAL, "too many: %s",
       err.text);
    fsdp_module_tree_destroy(tree);
    model_decoder_ops.destroy(model);
}

/* The first `count` tokens of a reference's batches; freed by the caller. */
static int32_t *batch_tokens(const char *folder, size_t count)
{
    size_t nbytes;
    uint16_t *raw = ref_read(ref_path(folder, "expected/batches.u16"), &nbytes);
    int32_t *tokens = malloc(count * sizeof *tokens);
    for (size_t i = 0; i < count; i++)
        tokens[i] = raw[i];
    free(raw);
    return tokens;
}

int main(void)
{
    int32_t odd[22], *llama = batch_tokens("llama-tiny", (size_t)4 * 33);
    int32_t *gpt2 = batch_tokens("gpt2-tiny", (size_t)4 * 25);
    json_t *json = json_load_file(ref_path("llama-odd/expected", "ref.json"), 0, NULL);
    struct fsdp_oob *oob;

    for (int i = 0; i < 22; i++)
        odd[i] = (int32_t)json_integer_value(
            json_array_get(json_array_get(json_object_get(json, "tokens"), 0), (size_t)i));
    test_decoding("llama-tiny", llama, 32, "expected/logits_step0.safetensors");
    test_decoding("llama-odd", odd, 21, "expected/logits.safetensors");
    test_decoding("gpt2-tiny", gpt2, 24, "expected/logits_step0.safetensors");
    static const char *const folders[] = {"llama-tiny", "llama-odd", "gpt2-tiny"};
    for (int i = 0; i < 3; i++) {
        test_sequences(folders[i]);
        test_kv_dtype(folders[i]);
    }
    test_long_prompt(
        "{\"model_type\": \"llama\", \"vocab_size\": 31, \"hidden_size\": 16,"
        " \"intermediate_size\": 24, \"num_hidden_layers\": 2, \"num_attention_heads\": 4,"
        " \"num_key_value_heads\": 1, \"max_position_embeddings\": 700}");
    test_long_prompt("{\"model_type\": \"gpt2\", \"vocab_size\": 31, \"n_embd\": 16,"
                     " \"n_layer\": 2, \"n_head\": 4, \"n_positions\": 700, \"n_inner\": 24}");
    test_describe();
    if (!ok(fsdp_oob_self_create(&oob, &err) == FSDP_OK, "a job of one rank"))
        return 1;
    test_engine(oob, "llama-tiny", llama, 32, 256);
    test_engine(oob, "gpt2-tiny", gpt2, 24, 211);
    test_init(oob);
    oob->close(oob);
    json_decref(json);
    free(llama), free(gpt2);
    return tap_done();
}
