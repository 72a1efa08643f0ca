/* SPDX-License-Identifier: Apache-2.0 */
#include "decoder.h"

double decoder_layer_nelem(const struct decoder *m)
{
    const double kv_dim = m->dim * m->kv_heads / m->heads;
    return m->dim * (2 * m->dim + 2 * kv_dim + (m->gated ? 3 : 2) * m->ffn);
}

double decoder_ends_nelem(const struct decoder *m)
{
    return (m->tied ? 1 : 2) * m->vocab * m->dim;
}

double decoder_tokens(const struct decoder_batch *b)
{
    return b->rows * b->seq / b->cp;
}

static void add_linear(struct work_list *list, double rows, double nin, double nout,
                       enum fsdp_dtype type, enum work_place place)
{
    work_add_linear(list,
                    &(struct work_linear){
                        .rows = rows, .nin = nin, .nout = nout, .type = type, .trained = true},
                    place);
}

/* Forward's pieces, which work_add_* mark as repeated, are repeated by a share. */
static void set_again(struct work_list *list, int from, const struct decoder_again *again)
{
    const double share[FSDP_WORK_NKINDS] = {[FSDP_WORK_PRODUCT] = again->products,
                                            [FSDP_WORK_ATTENTION] = again->attention,
                                            [FSDP_WORK_BYTES] = again->bytes};
    const int nitems = list->nitems;

    for (int i = from; i < nitems; i++) {
        struct fsdp_work *work = &list->item[i];
        if (!(work->phases & FSDP_WORK_RECOMPUTE))
            continue;
        work->phases &= ~(unsigned)(FSDP_WORK_RECOMPUTE | FSDP_WORK_CHEAP);
        if (!(share[work->kind] > 0) || list->nitems == WORK_MAX)
            continue;
        list->item[list->nitems] = *work;
        list->item[list->nitems].phases = FSDP_WORK_RECOMPUTE;
        list->item[list->nitems++].times *= share[work->kind];
    }
}

void decoder_layer_work(struct work_list *list, const struct decoder *m,
                        const struct decoder_batch *b)
{
    const double rows = decoder_tokens(b), tp = b->tp;
    const double kv_dim = m->dim * m->kv_heads / m->heads;
    const double up = (m->gated ? 2 : 1) * m->ffn;
    const bool quantizes = b->products == FSDP_F8_E4M3;
    const int from = list->nitems;

    add_linear(list, rows, m->dim, (m->dim + 2 * kv_dim) / tp, b->products, WORK_IN_LAYER);
    add_linear(list, rows, m->dim / tp, m->dim, b->products, WORK_IN_LAYER);
    add_linear(list, rows, m->dim, up / tp, b->products, WORK_IN_LAYER);
    add_linear(list, rows, m->ffn / tp, m->dim, b->products, WORK_IN_LAYER);
    work_add_attention(list, &(struct work_attention){.rows = rows,
                                                      .keys = b->all_scores ? b->seq : b->seq / 2,
                                                      .heads = m->heads / tp,
                                                      .head_dim = m->dim / m->heads,
                                                      .type = FSDP_BF16});
    double nbytes = 2 * work_branch_nbytes(rows, m->dim, FSDP_BF16) / (b->whole_norms ? 1 : tp) +
                    work_activation_nbytes(rows, m->ffn / tp, m->gated, FSDP_BF16);
    if (quantizes) /* what enters the four products is read in 16 bits and written in 8 */
        nbytes += 2 * rows * (2 * m->dim + (m->gated ? 1.5 : 1) * m->ffn) / tp;
    work_add_bytes(list, nbytes, PLAN_BACKWARD_BYTES, false, WORK_IN_LAYER);
    set_again(list, from, &b->again);
}

void decoder_head_work(struct work_list *list, const struct decoder *m,
                       const struct decoder_batch *b)
{
    const double rows = decoder_tokens(b), vocab = m->vocab / b->tp;

    add_linear(list, rows, m->dim, vocab, FSDP_BF16, WORK_IN_HEAD);
    work_add_bytes(list, work_loss_nbytes(rows, vocab, FSDP_BF16), 0, false, WORK_IN_HEAD);
}

double decoder_seconds(const struct work_list *list, unsigned phases,
                       const struct fsdp_device_clock *device)
{
    double seconds = 0;

    for (int i = 0; i < list->nitems; i++)
        if (list->item[i].phases & phases)
            seconds += fsdp_work_seconds(device, &list->item[i]);
    return seconds;
}
