/* SPDX-License-Identifier: Apache-2.0 */
#include "foreign.h"

/* What a run's step is made of. */
struct parts {
    const struct foreign_run *run;
    const struct fsdp_clock *clock;
    double forward, backward; /* of a layer, without what waits */
    double head;
    double tensor_forward, tensor_backward, context_forward, context_backward;
    double layer_nelem, ends_nelem; /* of a rank, before data parallelism cuts them */
    struct fsdp_group data;
    double comm; /* of data parallelism, all of it */
};

static double larger(double a, double b)
{
    return a > b ? a : b;
}

static double forward_seconds(const struct parts *p)
{
    return p->forward + p->tensor_forward + p->context_forward;
}

static double backward_seconds(const struct parts *p)
{
    return p->backward + p->tensor_backward + p->context_backward;
}

static double collective(const struct parts *p, enum fsdp_collective kind, struct fsdp_group group,
                         double nbytes)
{
    const struct fsdp_transfer t = fsdp_collective_transfer(&p->clock->net, kind, group, nbytes);
    return group.nranks > 1 ? fsdp_transfer_seconds(&t) : 0;
}

static void price_compute(struct parts *p)
{
    struct work_list layer = {.nitems = 0}, head = {.nitems = 0};
    const struct fsdp_device_clock *device = &p->clock->device;

    decoder_layer_work(&layer, &p->run->model, &p->run->batch);
    decoder_head_work(&head, &p->run->model, &p->run->batch);
    p->forward = decoder_seconds(&layer, FSDP_WORK_FORWARD, device);
    p->backward = decoder_seconds(&layer, FSDP_WORK_BACKWARD | FSDP_WORK_RECOMPUTE, device);
    p->head = decoder_seconds(&head, FSDP_WORK_FORWARD | FSDP_WORK_BACKWARD, device);
}

static void price_tensor(struct parts *p)
{
    const struct decoder_batch *b = &p->run->batch;
    const struct fsdp_group group = fsdp_group_of(&p->clock->net, b->tp, 1);

    if (b->tp < 2)
        return;
    const double each =
        collective(p, FSDP_ALL_GATHER, group, 2 * decoder_tokens(b) * p->run->model.dim) *
        (1 - p->run->tensor_hidden);
    p->tensor_forward = 4 * each;
    p->tensor_backward = (4 + 4 * b->again.products + (b->whole_norms ? 1 : 0)) * each;
}

static void price_context(struct parts *p)
{
    const struct decoder_batch *b = &p->run->batch;
    const struct decoder *m = &p->run->model;
    const struct fsdp_group group = fsdp_group_of(&p->clock->net, b->cp, b->tp);
    const double kv_dim = m->dim * m->kv_heads / m->heads / b->tp;

    if (b->cp < 2)
        return;
    const double each = collective(p, FSDP_ALL_GATHER, group, 4 * b->rows * b->seq * kv_dim);
    p->context_forward = .5 * each;
    p->context_backward = each;
}

static void price_parameters(struct parts *p)
{
    const struct foreign_run *r = p->run;
    const int nranks = r->data == FOREIGN_DDP ? r->shard * r->replicas : r->shard * r->batch.cp;

    p->layer_nelem = decoder_layer_nelem(&r->model) / r->batch.tp;
    p->ends_nelem = decoder_ends_nelem(&r->model) / r->batch.tp;
    p->data = fsdp_group_of(&p->clock->net, nranks, r->batch.tp);
}

static double rank_nelem(const struct parts *p)
{
    return (p->layer_nelem * p->run->model.layers + p->ends_nelem) / p->run->pp;
}

/* ---- FSDP by recurrence ---------------------------------------------------------------------- */

/* Unit 0 is the embedding and the head, the rest are layers. The network's lane gathers at most two
 * units ahead of the one that computes, and reduces a unit's gradients behind its backward. */
struct lanes {
    double net, compute;
};

static void forward(struct lanes *t, struct parts *p, int nunits, const double *gather)
{
    double ends[2] = {t->compute, t->compute};

    for (int i = 0; i < nunits; i++) {
        const double start = larger(t->net, ends[i % 2]);
        t->net = start + gather[i > 0];
        p->comm += gather[i > 0];
        t->compute = larger(t->compute, t->net) + (i > 0 ? forward_seconds(p) : 0);
        ends[i % 2] = t->compute;
    }
}

static void backward(struct lanes *t, struct parts *p, int nunits, const double *gather,
                     const double *reduce)
{
    double ends[2] = {t->compute, t->compute};

    for (int i = nunits - 1; i >= 0; i--) {
        const bool kept = i == 0 || i == nunits - 1;
        const double again = kept ? 0 : gather[1];
        t->net = larger(t->net, ends[i % 2]) + again;
        p->comm += again + reduce[i > 0];
        t->compute = larger(t->compute, again > 0 ? t->net : 0) + (i > 0 ? backward_seconds(p) : 0);
        ends[i % 2] = t->compute;
        if (i + 1 < nunits)
            t->net = larger(t->net, ends[(i + 1) % 2]) + reduce[1];
    }
    t->net = larger(t->net, t->compute) + reduce[0];
}

static double sharded_list(struct parts *p)
{
    const struct foreign_run *r = p->run;
    const double nelem[2] = {p->ends_nelem, p->layer_nelem};
    const int nunits = 1 + (int)r->model.layers;
    double gather[2], reduce[2], end = 0, last = 0;
    const double none[2] = {0, 0};

    for (int k = 0; k < 2; k++) {
        gather[k] = collective(p, FSDP_ALL_GATHER, p->data, nelem[k] * r->gather_nbytes);
        reduce[k] = collective(p, FSDP_REDUCE_SCATTER, p->data, nelem[k] * r->reduce_nbytes);
    }
    /* The second micro-step is like all that follow. */
    for (int m = 0; m < (r->accumulation > 1 ? 2 : 1); m++) {
        struct lanes t = {end, end};
        const double comm = p->comm;
        const bool keeps = r->data == FOREIGN_ZERO2;
        forward(&t, p, nunits, keeps && m > 0 ? none : gather);
        t.compute += p->head;
        backward(&t, p, nunits, keeps ? none : gather, reduce);
        last = larger(t.compute, t.net) - end;
        end += last;
        if (m == 1) {
            end += (r->accumulation - 2) * last;
            p->comm += (p->comm - comm) * (r->accumulation - 2);
        }
    }
    return end;
}

/* All-reduce over the replicas behind backward's last layers. */
static double replicate(struct parts *p)
{
    const struct foreign_run *r = p->run;
    const struct fsdp_group group =
        fsdp_group_of(&p->clock->net, r->replicas, r->shard * r->batch.cp * r->batch.tp);
    const double takes = collective(p, FSDP_ALL_REDUCE, group,
                                    rank_nelem(p) * r->reduce_nbytes / (r->shard * r->batch.cp));

    p->comm += takes;
    return larger(0, takes - .7 * r->model.layers * backward_seconds(p));
}

/* ---- once a step ----------------------------------------------------------------------------- */

/* Seconds of data parallelism that nothing hides. */
static double exposed_data(struct parts *p)
{
    const struct foreign_run *r = p->run;
    const double layers = r->model.layers / r->pp, nelem = rank_nelem(p);
    const double reduce = collective(p, FSDP_REDUCE_SCATTER, p->data, nelem * r->reduce_nbytes);
    const double gather = collective(p, FSDP_ALL_GATHER, p->data, nelem * r->gather_nbytes);
    const double behind_backward = r->data_hidden * layers * backward_seconds(p);
    const double behind_forward = r->data_hidden * layers * forward_seconds(p);

    if (p->data.nranks < 2)
        return 0;
    if (r->data == FOREIGN_DDP) {
        p->comm = 2 * reduce;
        return larger(0, 2 * reduce - behind_backward * (r->accumulation > 1 ? 2 : 1) *
                                          (r->data_hidden > 0));
    }
    p->comm = reduce + gather;
    return larger(0, reduce - behind_backward) + larger(0, gather - behind_forward);
}

static double pipe_seconds(const struct parts *p)
{
    const struct foreign_run *r = p->run;
    const struct decoder_batch *b = &r->batch;
    const double nbytes = 2 * decoder_tokens(b) * r->model.dim / (b->whole_norms ? 1 : b->tp);
    const double rate = p->clock->net.nic_nbytes_per_s * p->clock->net.flat_share;

    return r->pp > 1 ? 2 * r->vpp * nbytes / rate * (1 - r->pipe_hidden) : 0;
}

void foreign_step(struct foreign_times *out, const struct foreign_run *r,
                  const struct fsdp_clock *clock)
{
    struct parts p = {.run = r, .clock = clock};
    const double m = r->accumulation, layers = r->model.layers / r->pp;
    const struct fsdp_net_clock *net = &clock->net;
    const int nranks = r->batch.tp * r->batch.cp * r->pp * r->shard * r->replicas;
    const bool sharded = r->data >= FOREIGN_ZERO2 && r->pp == 1;

    *out = (struct foreign_times){0};
    price_compute(&p);
    price_tensor(&p);
    price_context(&p);
    price_parameters(&p);
    out->compute_s = m * (layers * (p.forward + p.backward) + p.head);
    out->tensor_s = m * layers * (p.tensor_forward + p.tensor_backward);
    out->context_s = m * layers * (p.context_forward + p.context_backward);
    out->pipe_s = m * pipe_seconds(&p);
    const double busy = out->compute_s + out->tensor_s + out->context_s + out->pipe_s;
    const double stage = layers * (forward_seconds(&p) + backward_seconds(&p)) + pipe_seconds(&p);
    out->bubble_s = (r->pp - 1.0) / r->vpp * stage;
    out->data_s = sharded ? larger(0, sharded_list(&p) - busy) : exposed_data(&p);
    if (sharded && r->replicas > 1)
        out->data_s += replicate(&p);
    /* These collectives move at about half the rate of a node's link. */
    const double contention = .7 * net->contention, slowdown = contention / (1 + contention);
    out->slowed_s = slowdown * larger(0, p.comm - out->data_s);
    /* 28 bytes of master, moments and gradient of each element that the rank holds. */
    const double held = rank_nelem(&p) / (r->data == FOREIGN_DDP ? 1 : r->shard);
    const double update = fsdp_touch_seconds(&clock->device, 28 * held);
    out->step_s =
        (busy + out->bubble_s + out->data_s + out->slowed_s + update + clock->device.step_s) *
        fsdp_jitter_factor(net, nranks);
    const double tokens = r->batch.rows * r->batch.seq * m * r->shard * r->replicas;
    out->tokens_per_s = tokens / out->step_s / nranks;
}
