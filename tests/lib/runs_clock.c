/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clocks of published runs: models/plan/stock.c with what other frameworks do otherwise. The table
 * below is fitted to the rows (test_published --fit) except where it says assumed.
 */
#include <math.h>
#include <string.h>
#include <strings.h>

#include "plan/stock.h"
#include "runs.h"

static const struct constant {
    const char *name;
    double value;     /* of those that are the frameworks'; the rest is in stock.c */
    double low, high; /* of sensible ones; equal: not fitted, but measured or assumed */
} constants[RUNS_NCONSTANTS] = {
    [RUNS_A100_PRODUCTS] = {"A100: share of the peak in products", 0, .5, .95},
    [RUNS_H100_PRODUCTS] = {"H100: share of the peak in products", 0, .5, .95},
    [RUNS_H100_500W_PRODUCTS] = {"H100 at 500 W: share of the peak in products", 0, .4, .9},
    [RUNS_FP8_GAIN] = {"fp8: speed of products over bf16's", 0, 1, 2},
    [RUNS_A100_ATTENTION] = {"A100: share of the peak in attention", 0, 0, 0},
    [RUNS_H100_ATTENTION] = {"H100: share of the peak in attention", 0, 0, 0},
    [RUNS_FLAT_SHARE] = {"share of the cards in flat rings over 16 nodes", 0, .3, .92},
    [RUNS_FLAT_FALL] = {"its fall with the nodes: power", 0, 0, 0},
    [RUNS_CONTENTION] = {"slowdown next to communication", 0, 0, 0},
    [RUNS_JITTER] = {"spread of a rank's step", 0, 0, 0},
    [RUNS_EAGER] = {"pointwise bytes: eager PyTorch", 2.31, 1, 6},
    [RUNS_COMPILE] = {"pointwise bytes: torch.compile", 1, 0, 0},
    [RUNS_TE] = {"pointwise bytes: Transformer Engine", 1.69, 1, 4},
    [RUNS_MEGATRON] = {"pointwise bytes: Megatron-LM 2021", 1.12, .8, 4},
    [RUNS_NANOTRON] = {"pointwise bytes: nanotron", 2.44, 1, 6},
    [RUNS_CPP] = {"pointwise bytes: C++", 1, 0, 0},
    [RUNS_FA1_A100] = {"A100: attention of 2022", .347, .1, .8},
    [RUNS_FA1_H100] = {"H100: attention of 2022", .194, .1, .8},
    [RUNS_FA2_H100] = {"H100: attention of 2023", .24, .1, .8},
    [RUNS_SCORE_NBYTES] = {"bytes of a score that is stored", 14, 4, 30},
    [RUNS_STEP_S] = {"seconds of a step apart from its list", .029, 0, .05},
    [RUNS_DS_COLLECTIVES] = {"DeepSpeed's ZeRO-3: collectives of a layer", 7.5, 1, 20},
    [RUNS_TP_HIDDEN_TE] = {"hidden of tensor parallelism: Transformer Engine", .05, 0, .98},
    [RUNS_TP_HIDDEN_ASYNC] = {"hidden of tensor parallelism: async", .03, 0, .98},
    [RUNS_DATA_HIDDEN] = {"hidden behind one micro-step: its share", .386, 0, .98},
};

bool runs_constant_is_fitted(enum runs_constant which)
{
    return constants[which].high > constants[which].low;
}

const char *runs_constant_name(enum runs_constant which)
{
    return constants[which].name;
}

void runs_constant_range(double *low, double *high, enum runs_constant which)
{
    *low = constants[which].low;
    *high = constants[which].high;
}

#define ROWWISE_GAIN 1.25

/* ---- words ----------------------------------------------------------------------------------- */

static bool has(const char *text, const char *word)
{
    for (; *text; text++)
        if (!strncasecmp(text, word, strlen(word)))
            return true;
    return false;
}

/* Word of stock.c, which names the nearest. */
static const char *gpu_word(const char *gpu)
{
    if (has(gpu, "a100") || has(gpu, "a800"))
        return has(gpu, "40") ? "a100-40" : "a100";
    if (has(gpu, "gh200"))
        return "gh200";
    if (has(gpu, "h200"))
        return "h200";
    if (has(gpu, "b200") || has(gpu, "b100") || has(gpu, "b300"))
        return "b200";
    return has(gpu, "500w") ? "h100-500w" : "h100";
}

static bool is_a100(const struct runs_row *r)
{
    return !strncmp(gpu_word(r->gpu), "a100", 4);
}

static bool is_fp8(const struct runs_row *r)
{
    return has(r->precision, "fp8") || has(r->precision, "f8");
}

static bool is_fsdp_of_deepspeed(const struct runs_row *r)
{
    return (has(r->framework, "deepspeed") || has(r->source, "deepspeed")) &&
           has(r->strategy, "zero3");
}

/* How a framework runs pointwise kernels. */
static enum runs_constant stack_of(const struct runs_row *r)
{
    static const struct {
        const char *word;
        enum runs_constant is;
    } words[] = {
        {"compile", RUNS_COMPILE},
        {"eager", RUNS_EAGER},
        {"mega21", RUNS_MEGATRON},
        {"nanotron", RUNS_NANOTRON},
        {"cpp", RUNS_CPP},
        {"c++", RUNS_CPP},
        {"libfsdp", RUNS_CPP},
        {"deepspeed", RUNS_EAGER},
        {"megatron-deepspeed", RUNS_MEGATRON},
        {"te", RUNS_TE},
        {"mcore", RUNS_TE},
        {"megatron", RUNS_TE},
        {"nemo", RUNS_TE},
        {"transformer", RUNS_TE},
    };

    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (!strncasecmp(r->stack, words[i].word, strlen(words[i].word)))
            return words[i].is;
    return RUNS_EAGER;
}

enum kernel { FA1, FA2, FA3, UNFUSED, UNFUSED_AGAIN };

static enum kernel kernel_of(const struct runs_row *r)
{
    if (has(r->attn, "unfused") || has(r->attn, "eager") || has(r->attn, "naive") ||
        has(r->attn, "math"))
        return has(r->attn, "sel") ? UNFUSED_AGAIN : UNFUSED;
    if (has(r->attn, "fa1") || has(r->attn, "triton") || has(r->attn, "xformers"))
        return FA1;
    if (has(r->attn, "fa3") || has(r->attn, "fa4") || has(r->attn, "cudnn") || has(r->attn, "te"))
        return FA3;
    return FA2;
}

static double attention_share(const struct runs_row *r, const double value[RUNS_NCONSTANTS])
{
    const double watts =
        has(r->gpu, "500w") ? value[RUNS_H100_500W_PRODUCTS] / value[RUNS_H100_PRODUCTS] : 1;
    switch (kernel_of(r)) {
    case FA1:
        return is_a100(r) ? value[RUNS_FA1_A100] : value[RUNS_FA1_H100] * watts;
    case FA2:
        return is_a100(r) ? value[RUNS_A100_ATTENTION] : value[RUNS_FA2_H100] * watts;
    default:
        return is_a100(r) ? value[RUNS_A100_ATTENTION] : value[RUNS_H100_ATTENTION] * watts;
    }
}

/* ---- values ---------------------------------------------------------------------------------- */

void runs_constants(double value[RUNS_NCONSTANTS])
{
    struct fsdp_device_clock a100, h100, h100_500w;
    struct fsdp_net_clock net;

    for (int i = 0; i < RUNS_NCONSTANTS; i++)
        value[i] = constants[i].value;
    if (stock_device(&a100, "a100", NULL) || stock_device(&h100, "h100", NULL) ||
        stock_device(&h100_500w, "h100-500w", NULL) ||
        stock_network(&net, "h100", "400Gbx8", 8, NULL))
        return;
    value[RUNS_A100_PRODUCTS] = a100.product_share;
    value[RUNS_H100_PRODUCTS] = h100.product_share;
    value[RUNS_H100_500W_PRODUCTS] = h100_500w.product_share;
    value[RUNS_FP8_GAIN] = 2 * h100.product_share_8 / h100.product_share;
    value[RUNS_A100_ATTENTION] = a100.attention_share;
    value[RUNS_H100_ATTENTION] = h100.attention_share;
    value[RUNS_FLAT_SHARE] = net.flat_share;
    value[RUNS_FLAT_FALL] = net.flat_fall;
    value[RUNS_CONTENTION] = net.contention;
    value[RUNS_JITTER] = net.jitter;
}

bool runs_constant_acts(enum runs_constant which, const struct runs_row *r)
{
    const bool foreign = runs_is_foreign(r), h100 = !is_a100(r);
    const enum kernel kernel = kernel_of(r);

    switch (which) {
    case RUNS_A100_PRODUCTS:
        return !h100;
    case RUNS_H100_PRODUCTS:
        return h100;
    case RUNS_H100_500W_PRODUCTS:
        return has(r->gpu, "500w");
    case RUNS_FP8_GAIN:
        return is_fp8(r);
    case RUNS_A100_ATTENTION:
        return !h100 && (kernel == FA2 || kernel == FA3);
    case RUNS_H100_ATTENTION:
        return h100 && kernel == FA3;
    case RUNS_FA1_A100:
        return !h100 && kernel == FA1;
    case RUNS_FA1_H100:
        return h100 && kernel == FA1;
    case RUNS_FA2_H100:
        return h100 && kernel == FA2;
    case RUNS_SCORE_NBYTES:
        return kernel == UNFUSED || kernel == UNFUSED_AGAIN;
    case RUNS_FLAT_SHARE:
    case RUNS_FLAT_FALL:
        return r->gpus > r->node_size;
    case RUNS_CONTENTION:
        return r->gpus > 1 && !is_fsdp_of_deepspeed(r);
    case RUNS_DS_COLLECTIVES:
        return is_fsdp_of_deepspeed(r);
    case RUNS_TP_HIDDEN_TE:
        return r->tp > 1 && stack_of(r) == RUNS_TE;
    case RUNS_TP_HIDDEN_ASYNC:
        return r->tp > 1 && has(r->stack, "+atp");
    case RUNS_DATA_HIDDEN:
        return foreign;
    case RUNS_JITTER:
    case RUNS_STEP_S:
        return true;
    default:
        return which == stack_of(r);
    }
}

/* ---- clocks ---------------------------------------------------------------------------------- */

static void set_device(struct fsdp_device_clock *d, const struct runs_row *r,
                       const double value[RUNS_NCONSTANTS])
{
    const enum kernel kernel = kernel_of(r);

    if (is_a100(r))
        d->product_share = value[RUNS_A100_PRODUCTS];
    else if (has(r->gpu, "500w"))
        d->product_share = value[RUNS_H100_500W_PRODUCTS];
    else if (!has(r->gpu, "b200"))
        d->product_share = value[RUNS_H100_PRODUCTS];
    /* Scales by row had slow kernels: as fast as bf16, or slower (assumed between the two). */
    d->product_share_8 =
        d->product_share * (has(r->precision, "row") ? ROWWISE_GAIN : value[RUNS_FP8_GAIN]) / 2;
    d->pointwise = value[stack_of(r)];
    d->step_s = value[RUNS_STEP_S];
    d->attention_share = attention_share(r, value);
    if (kernel == UNFUSED || kernel == UNFUSED_AGAIN) {
        /* Batched products with a narrow dimension: assumed. Backward has twice forward's FLOP. */
        d->attention_share = .6 * d->product_share;
        d->attention_gradient = .8;
        d->score_nbytes = value[RUNS_SCORE_NBYTES];
    }
}

int runs_clock(struct fsdp_clock *out, const struct runs_row *r,
               const double value[RUNS_NCONSTANTS], struct fsdp_err *err)
{
    const char *word = gpu_word(r->gpu);

    *out = (struct fsdp_clock){.ntokens = r->micro_batch * r->seq};
    FSDP_TRY(stock_device(&out->device, word, err));
    FSDP_TRY(stock_network(&out->net, word, "none", r->node_size, err));
    if (r->net_gbs > 0)
        out->net.nic_nbytes_per_s = r->net_gbs * 1e9 / r->node_size;
    else if (is_a100(r)) /* cards of that generation */
        out->net.nic_nbytes_per_s = 25e9;
    set_device(&out->device, r, value);
    out->net.flat_share = value[RUNS_FLAT_SHARE];
    out->net.contention = value[RUNS_CONTENTION];
    out->net.jitter = value[RUNS_JITTER];
    out->net.flat_fall = value[RUNS_FLAT_FALL];
    if (is_fsdp_of_deepspeed(r)) { /* nothing is hidden: its rows show it */
        out->net.collectives = value[RUNS_DS_COLLECTIVES];
        out->device.serial = true;
    }
    return FSDP_OK;
}

/* ---- work ------------------------------------------------------------------------------------ */

static struct decoder_again again_of(const struct runs_row *r)
{
    const double share = r->recompute_frac;
    struct decoder_again again = {share, share, share};

    if (!strncmp(r->recompute, "selective-op", 12)) /* every second product, and what is cheap */
        again = (struct decoder_again){.5, 0, 1};
    else if (kernel_of(r) == UNFUSED_AGAIN || !strncmp(r->recompute, "selective", 9))
        again = (struct decoder_again){0, 1, 0};
    return again;
}

static enum foreign_data data_of(const char *strategy)
{
    if (has(strategy, "zero3") || has(strategy, "hsdp") || has(strategy, "full"))
        return FOREIGN_ZERO3;
    if (has(strategy, "zero2") || has(strategy, "grad_op"))
        return FOREIGN_ZERO2;
    return has(strategy, "zero1") ? FOREIGN_ZERO1 : FOREIGN_DDP;
}

void runs_foreign(struct foreign_run *out, const struct runs_row *r,
                  const double value[RUNS_NCONSTANTS])
{
    const enum runs_constant stack = stack_of(r);
    const bool old = stack == RUNS_MEGATRON;
    const enum kernel kernel = kernel_of(r);

    *out = (struct foreign_run){
        .model = {.dim = r->dim,
                  .layers = r->layers,
                  .heads = r->heads,
                  .kv_heads = r->kv_heads,
                  .ffn = r->ffn,
                  .vocab = r->vocab,
                  .gated = has(r->mlp, "glu"),
                  .tied = r->tied},
        .batch = {.rows = r->micro_batch,
                  .seq = r->seq,
                  .tp = r->tp,
                  .cp = r->cp,
                  .whole_norms = old,
                  .all_scores = kernel == UNFUSED || kernel == UNFUSED_AGAIN,
                  .products = is_fp8(r)                 ? FSDP_F8_E4M3
                              : has(r->precision, "32") ? FSDP_F32
                                                        : FSDP_BF16,
                  .again = again_of(r)},
        .pp = r->pp,
        .vpp = r->vpp,
        .accumulation = r->accum,
        .data = data_of(r->strategy),
        .shard = r->shard,
        .replicas = r->replicas,
        .gather_nbytes = r->gather_nbytes,
        .reduce_nbytes = r->reduce_nbytes,
        .tensor_hidden = has(r->stack, "+atp") ? value[RUNS_TP_HIDDEN_ASYNC]
                         : stack == RUNS_TE    ? value[RUNS_TP_HIDDEN_TE]
                                               : 0,
        .pipe_hidden = old ? 0 : .7,
        .data_hidden = old ? 0 : value[RUNS_DATA_HIDDEN],
    };
}
