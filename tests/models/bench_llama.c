/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A benchmark, not a test: seconds per training step of one process, and where they go.
 *
 *   bench_llama [name=value ...]     dim layers heads kv_heads ffn vocab batch seq steps recompute
 *                                    threads bf16; config=FILE: the model of a config.json instead
 */
#include <stdio.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "family/stack.h"
#include "ref_run.h"

/* ---- a table of operators that counts time -------------------------------------------------- */

/* Products of weights come first, then attention, whose products are its own. */
#define OPERATORS(X)                                                                               \
    X(linear_forward, nn_linear)                                                                   \
    X(linear_backward_input, nn_linear)                                                            \
    X(linear_backward_weight, nn_linear)                                                           \
    X(grouped_forward, nn_grouped)                                                                 \
    X(grouped_backward_input, nn_grouped)                                                          \
    X(grouped_backward_weight, nn_grouped)                                                         \
    X(attention_forward, nn_attention)                                                             \
    X(attention_backward, nn_attention)                                                            \
    X(embedding_forward, nn_embedding)                                                             \
    X(embedding_backward, nn_embedding)                                                            \
    X(rmsnorm_forward, nn_rmsnorm)                                                                 \
    X(rmsnorm_backward, nn_rmsnorm_backward)                                                       \
    X(layernorm_forward, nn_layernorm)                                                             \
    X(layernorm_backward, nn_layernorm_backward)                                                   \
    X(rope_table, nn_rope_table)                                                                   \
    X(rope, nn_rope)                                                                               \
    X(glu_forward, nn_glu)                                                                         \
    X(glu_backward, nn_glu)                                                                        \
    X(pointwise_forward, nn_pointwise)                                                             \
    X(pointwise_backward, nn_pointwise)                                                            \
    X(scale_add, nn_scale_add)                                                                     \
    X(copy_blocks, nn_copy_blocks)                                                                 \
    X(logits, nn_logits)                                                                           \
    X(dropout, nn_dropout)                                                                         \
    X(cross_entropy, nn_cross_entropy)                                                             \
    X(route_forward, nn_route)                                                                     \
    X(route_backward, nn_route_backward)                                                           \
    X(expert_order, nn_expert_order)                                                               \
    X(expert_load, nn_expert_load)                                                                 \
    X(balance, nn_balance)                                                                         \
    X(spread_rows, nn_spread_rows)                                                                 \
    X(collect_rows, nn_collect_rows)                                                               \
    X(weigh_backward, nn_weigh_backward)                                                           \
    X(split_tokens, nn_split_tokens)                                                               \
    X(positions, nn_positions)
enum { NPRODUCTS = 6, NATTENTION = 2 };

#define INDEX(name, type) AT_##name,
enum { OPERATORS(INDEX) NOPERATORS };
#define NAME(name, type) #name,
static const char *const names[] = {OPERATORS(NAME)};
static double seconds[NOPERATORS];

/* One thread's time is its own, whoever else the machine works for. */
static bool one_thread;
static double now(void)
{
    struct timespec t;
    if (!one_thread)
        return fsdp_time_now();
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#define TIMED(name, type)                                                                          \
    static int timed_##name(struct fsdp_lane *lane, const struct type *args, struct fsdp_err *err) \
    {                                                                                              \
        double start = now();                                                                      \
        int rc = nn_cpu_ops.name(lane, args, err);                                                 \
        seconds[AT_##name] += now() - start;                                                       \
        return rc;                                                                                 \
    }
OPERATORS(TIMED)

static struct nn_ops timed_ops(void)
{
    struct nn_ops ops = nn_cpu_ops;
#define WRAP(name, type) ops.name = timed_##name;
    OPERATORS(WRAP)
    return ops;
}

/* ---- the run -------------------------------------------------------------------------------- */

static const char *given_config; /* NULL: a Llama of these sizes */
static struct {
    const char *name;
    int value;
} sizes[] = {{"dim", 512},  {"layers", 8},    {"heads", 8},   {"kv_heads", 8},
             {"ffn", 1408}, {"vocab", 8192},  {"batch", 4},   {"seq", 256},
             {"steps", 7},  {"recompute", 0}, {"threads", 0}, {"bf16", 0}};
enum {
    DIM,
    LAYERS,
    HEADS,
    KV_HEADS,
    FFN,
    VOCAB,
    BATCH,
    SEQ,
    NSTEPS,
    RECOMPUTE,
    THREADS,
    IN_BF16,
    NSIZES
};

static int parse(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        char *eq = strchr(argv[i], '=');
        int k = 0;
        if (!strncmp(argv[i], "config=", 7)) {
            given_config = eq + 1;
            continue;
        }
        while (eq && k < NSIZES &&
               (strncmp(argv[i], sizes[k].name, (size_t)(eq - argv[i])) ||
                sizes[k].name[eq - argv[i]]))
            k++;
        if (!eq || k == NSIZES) {
            fprintf(stderr, "unknown: %s\n", argv[i]);
            return 2;
        }
        sizes[k].value = atoi(eq + 1);
    }
    return 0;
}

static const char *write_config(void)
{
    static char path[] = "/tmp/bench-config-XXXXXX";
    FILE *file = fdopen(mkstemp(path), "w");
    fprintf(file,
            "{\"model_type\": \"llama\", \"hidden_size\": %d, \"num_hidden_layers\": %d,"
            " \"num_attention_heads\": %d, \"num_key_value_heads\": %d,"
            " \"intermediate_size\": %d, \"vocab_size\": %d, \"max_position_embeddings\": %d}",
            sizes[DIM].value, sizes[LAYERS].value, sizes[HEADS].value, sizes[KV_HEADS].value,
            sizes[FFN].value, sizes[VOCAB].value, sizes[SEQ].value);
    fclose(file);
    return path;
}

/* CPU seconds of this process: what a step costs on a machine that is not ours alone. */
static double cpu_seconds(void)
{
    struct rusage r;
    getrusage(RUSAGE_SELF, &r);
    return (double)(r.ru_utime.tv_sec + r.ru_stime.tv_sec) +
           1e-6 * (double)(r.ru_utime.tv_usec + r.ru_stime.tv_usec);
}

static double sum_of(int first, int count)
{
    double sum = 0;
    for (int i = first; i < first + count; i++)
        sum += seconds[i];
    return sum;
}

static void report(const double *step, double run, double update)
{
    const int nsteps = sizes[NSTEPS].value;
    double best = step[0], rest = run;
    for (int i = 0; i < nsteps; i++)
        best = step[i] < best ? step[i] : best;
    double total = run + update;
    printf("\n%-24s %8.4f s best, %.4f s mean\n", "step", best, total / nsteps);
    for (int i = 0; i < NOPERATORS; i++)
        if (seconds[i] > 0)
            printf("%-24s %8.4f s %5.1f %%\n", names[i], seconds[i] / nsteps,
                   100 * seconds[i] / total);
    rest -= sum_of(0, NOPERATORS);
    printf("%-24s %8.4f s %5.1f %%\n", "engine in the pass", rest / nsteps, 100 * rest / total);
    printf("%-24s %8.4f s %5.1f %%\n", "clip and update", update / nsteps, 100 * update / total);
    rest = total - sum_of(0, NPRODUCTS);
    printf("%-24s %8.4f s %5.1f %%\n", "outside matrix products", rest / nsteps,
           100 * rest / total);
    rest -= sum_of(NPRODUCTS, NATTENTION);
    printf("%-24s %8.4f s %5.1f %%\n", "and outside attention", rest / nsteps, 100 * rest / total);
}

static int bench(struct ref_rank *r, struct fsdp_err *err)
{
    const int B = sizes[BATCH].value, len = sizes[SEQ].value, nsteps = sizes[NSTEPS].value;
    const size_t ntokens = (size_t)B * (size_t)(len + 1);
    int32_t *tokens = malloc(ntokens * sizeof *tokens);
    double control[FSDP_CONTROL_NELEM] = {0}, step_s[1000], run_s = 0, update_s = 0, cpu_s = 0;
    struct model_batch batch = {.tokens = tokens, .B = B, .T = len, .loss_scale = 1.0 / (B * len)};

    for (int step = -2; step < nsteps; step++) {
        struct fsdp_step_args args = {.step = step + 2, .lr = 3e-4, .control = control};
        struct fsdp_step_result result;
        for (size_t i = 0; i < ntokens; i++)
            tokens[i] = (int32_t)(((i + 7919 * (size_t)(step + 2)) * 2654435761u >> 7) %
                                  (size_t)r->ops->vocab_size(r->model));
        if (step == 0) {
            memset(seconds, 0, sizeof seconds);
            cpu_s = cpu_seconds();
        }
        control[0] = 0;
        double start = now();
        FSDP_TRY(fsdp_micro_begin(r->f, FSDP_TRAIN, 0, err));
        FSDP_TRY(r->ops->run(r->model, r->f, &batch, true, control, err));
        FSDP_TRY(fsdp_micro_end(r->f, err));
        double middle = now();
        FSDP_TRY(fsdp_step(r->f, &args, &result, err));
        double end = now();
        printf("step %d: %.4f s, loss %.4f, norm %.4f\n", step, end - start,
               result.control[0] / (B * len), result.grad_norm);
        if (step >= 0) {
            step_s[step] = end - start;
            run_s += middle - start;
            update_s += end - middle;
        }
    }
    report(step_s, run_s, update_s);
    double flops = r->ops->flops_per_token(r->model, len) * B * len;
    printf("%.1f GFLOP a step, %.1f GFLOP/s\n", flops * 1e-9,
           flops * 1e-9 * nsteps / (run_s + update_s));
    printf("%.4f CPU seconds a step\n", (cpu_seconds() - cpu_s) / nsteps);
    free(tokens);
    return FSDP_OK;
}

int main(int argc, char **argv)
{
    static const int node_of[1];
    const struct fsdp_node_map nodes = {.nranks = 1, .nnodes = 1, .node_of = node_of};
    struct fsdp_err err = FSDP_ERR_INIT;
    struct fsdp_opts opts = FSDP_OPTS_INIT;
    struct model_dtypes dtypes = {.activation = FSDP_F32};
    struct nn_ops ops = timed_ops();
    struct ref_rank r = {.ops = &model_decoder_ops};
    struct fsdp_mesh_shape shape = {.shard_size = 1, .replicate_size = 1};
    struct fsdp_oob *oob;
    const char *config;
    int rc;

    if (parse(argc, argv) || fsdp_oob_self_create(&oob, &err))
        return 2;
    config = given_config ? given_config : write_config();
    nn_set_threads(sizes[THREADS].value);
    one_thread = sizes[THREADS].value == 1;
    printf("BLAS kernels: %s\n", nn_blas_kernels());
    opts.activation_checkpointing = sizes[RECOMPUTE].value ? FSDP_AC_FULL : FSDP_AC_NONE;
    if (sizes[IN_BF16].value)
        opts.param_dtype = dtypes.activation = dtypes.output = FSDP_BF16;
    if ((rc = r.ops->create(&r.model, config, &err)))
        goto out;
    r.ops->set_dtypes(r.model, &dtypes);
    opts.wrap_classes = r.ops->wrap_classes(r.model);
    if ((rc = fsdp_module_tree_create(&r.tree, &err)) ||
        (rc = r.ops->describe(r.model, r.tree, sizes[BATCH].value, sizes[SEQ].value, &err)) ||
        (rc = fsdp_device_open(&r.device, "cpu", 0, &err)) ||
        (rc = fsdp_mesh_create(&r.mesh, shape, "auto", 60, &nodes, oob, r.device, &err)) ||
        (rc = fsdp_create(&r.f, r.tree, &opts, r.device, r.mesh, &err)) ||
        (rc = fsdp_init_params(r.f, &err)))
        goto out;
    r.model->nn = &ops;
    rc = bench(&r, &err);
out:
    if (rc)
        fprintf(stderr, "%s\n", err.text);
    ref_rank_close(&r);
    oob->close(oob);
    if (!given_config)
        unlink(config);
    return rc != 0;
}
