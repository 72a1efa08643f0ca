/* SPDX-License-Identifier: Apache-2.0 */
/* The run with tensor, context and pipeline parallelism, as Megatron-LM does them. */
#include <string.h>

#include "foreign_answer.h"

/* Of Megatron-LM with Transformer Engine: fitted to published runs (docs/results/plan.md), but for
 * the pipeline's, which is assumed. */
static const double pointwise = 1.69, step_s = 0.029;
static const double tensor_hidden = 0.05, data_hidden = 0.386, pipe_hidden = 0.7;

static int check_ranks(const struct foreign_ask *f, int nranks, struct fsdp_err *err)
{
    const int each = f->tp * f->pp * f->cp;

    if (nranks % each)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "--foreign: tp %d x pp %d x cp %d are %d ranks, of which %d are no "
                            "multiple",
                            f->tp, f->pp, f->cp, each, nranks);
    if (f->vpp > 1 && f->pp == 1)
        return fsdp_err_set(err, FSDP_EINVAL, "--foreign: vpp=%d is for a pipeline: give pp, too",
                            f->vpp);
    return FSDP_OK;
}

static int check_model(const struct foreign_ask *f, const struct decoder *m, const struct answer *a,
                       struct fsdp_err *err)
{
    if ((int)m->heads % f->tp || (int)m->kv_heads % f->tp)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "--foreign: tp=%d divides %d heads or %d of keys and values into parts "
                            "of unequal size",
                            f->tp, (int)m->heads, (int)m->kv_heads);
    if ((int)m->layers % (f->pp * f->vpp))
        return fsdp_err_set(err, FSDP_EINVAL,
                            "--foreign: %d layers are no multiple of pp %d x vpp %d",
                            (int)m->layers, f->pp, f->vpp);
    if (a->row_tokens % f->cp)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "--foreign: rows of %lld tokens are no multiple of cp=%d",
                            (long long)a->row_tokens, f->cp);
    return FSDP_OK;
}

/* Rows of the step over the ranks of data parallelism. */
static int divide_rows(struct answer_foreign *f, const struct answer *a,
                       const struct train_parts *parts, struct fsdp_err *err)
{
    const long long once = (long long)f->data_nranks * a->micro_rows;
    const long long rows = a->rows / train_parts_row_sequences(parts);

    if (rows % once)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "--foreign: a step of %lld rows is no multiple of %d data-parallel "
                            "ranks x %d rows of a micro-step; change train.global_batch_size or "
                            "train.micro_batch_size",
                            rows, f->data_nranks, a->micro_rows);
    f->accumulation = (int)(rows / once);
    return FSDP_OK;
}

static struct decoder_again repeated(const struct config *c)
{
    if (c->fsdp.activation_checkpointing == FSDP_AC_FULL)
        return (struct decoder_again){1, 1, 1};
    if (c->fsdp.activation_checkpointing == FSDP_AC_SELECTIVE)
        return (struct decoder_again){.attention = 1};
    return (struct decoder_again){0, 0, 0};
}

static double nbytes_of(const char *type, double otherwise)
{
    enum fsdp_dtype dtype;
    return fsdp_dtype_parse(&dtype, type, NULL) == FSDP_OK ? (double)fsdp_dtype_nbytes(dtype)
                                                           : otherwise;
}

static struct answer_band band_of(const struct question *q)
{
    if (stock_is_assumed(q->cluster->gpu))
        return (struct answer_band){.4, "foreign, by formula: assumed constants of the device",
                                    true};
    return (struct answer_band){.23, "foreign, by formula: 9 of 10 published runs are within 23 %",
                                false};
}

static void price(struct answer_foreign *f, const struct answer *a, const struct train_parts *parts,
                  const struct decoder *model, const struct question *q)
{
    const struct foreign_run run = {
        .model = *model,
        .batch = {.rows = a->micro_rows * train_parts_row_sequences(parts),
                  .seq = (double)a->row_tokens,
                  .tp = f->ask.tp,
                  .cp = f->ask.cp,
                  .products = nbytes_of(a->gathered, 2) > 2 ? FSDP_F32 : FSDP_BF16,
                  .again = repeated(parts->config)},
        .pp = f->ask.pp,
        .vpp = f->ask.vpp,
        .accumulation = f->accumulation,
        .data = FOREIGN_ZERO1,
        .shard = f->data_nranks,
        .replicas = 1,
        .gather_nbytes = nbytes_of(a->gathered, 2),
        .reduce_nbytes = nbytes_of(a->reduced, 4),
        .tensor_hidden = tensor_hidden,
        .pipe_hidden = pipe_hidden,
        .data_hidden = data_hidden,
    };
    struct fsdp_clock clock = q->cluster->clock;

    clock.device.pointwise *= pointwise;
    clock.device.step_s = step_s;
    foreign_step(&f->times, &run, &clock);
    f->tokens_s_gpu = f->times.tokens_per_s;
    f->band = band_of(q);
    f->priced = true;
}

int answer_price_foreign(struct answer *a, const struct train_parts *parts,
                         const struct question *q, struct fsdp_err *err)
{
    struct answer_foreign *f = &a->foreign;
    struct decoder model;

    if (!q->foreign.tp)
        return FSDP_OK;
    f->ask = q->foreign;
    if (!(q->cluster->clock.device.flops_16 > 0))
        return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                            "--foreign: its formulas are of GPUs, and this plan is for %s",
                            q->cluster->clock.device.name);
    if (!parts->ops->dimensions(parts->model, &model))
        return fsdp_err_set(err, FSDP_EUNSUPPORTED, "--foreign: no formulas for the experts of %s",
                            a->family);
    FSDP_TRY(check_ranks(&f->ask, a->nranks, err));
    FSDP_TRY(check_model(&f->ask, &model, a, err));
    f->data_nranks = a->nranks / (f->ask.tp * f->ask.pp * f->ask.cp);
    FSDP_TRY(divide_rows(f, a, parts, err));
    price(f, a, parts, &model, q);
    return FSDP_OK;
}
