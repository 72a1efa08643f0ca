/* SPDX-License-Identifier: Apache-2.0 */
/* A decoder of dimensions, and foreign parallelism by formula: values by hand, and laws. */
#include <math.h>

#include "plan/foreign.h"
#include "tap.h"

/* 100 TFLOP/s, 1000 GB/s of memory, 100 GB/s in a node of 8, 10 GB/s of a card; nothing else. */
static struct fsdp_clock round_clock(void)
{
    return (struct fsdp_clock){.device = {.flops_16 = 1e14,
                                          .product_share = 1,
                                          .attention_share = 1,
                                          .memory_nbytes_per_s = 1e12,
                                          .memory_share = 1},
                               .net = {.node_nranks = 8,
                                       .node_nbytes_per_s = 1e11,
                                       .nic_nbytes_per_s = 1e10,
                                       .flat_share = 1,
                                       .rail_share = 1,
                                       .host_nbytes_per_s = 1e10}};
}

/* Llama 3 8B. */
static struct foreign_run llama(int tp, int pp, int shard)
{
    return (struct foreign_run){.model = {.dim = 4096,
                                          .layers = 32,
                                          .heads = 32,
                                          .kv_heads = 8,
                                          .ffn = 14336,
                                          .vocab = 128256,
                                          .gated = true},
                                .batch = {.rows = 1, .seq = 8192, .tp = tp, .cp = 1},
                                .pp = pp,
                                .vpp = 1,
                                .accumulation = 4,
                                .data = FOREIGN_ZERO1,
                                .shard = shard,
                                .replicas = 1,
                                .gather_nbytes = 2,
                                .reduce_nbytes = 4};
}

static struct foreign_times timed(const struct foreign_run *run, const struct fsdp_clock *clock)
{
    struct foreign_times t;
    foreign_step(&t, run, clock);
    return t;
}

static bool near(double a, double b)
{
    return fabs(a - b) <= 1e-9 * fabs(b);
}

static void test_decoder(void)
{
    const struct foreign_run run = llama(1, 1, 1);
    struct decoder_batch batch = run.batch;
    struct work_list layer = {.nitems = 0}, again = {.nitems = 0}, half = {.nitems = 0};
    double flops = 0;

    /* q and o 2 * 4096 * 4096, k and v 2 * 4096 * 1024, the MLP 3 * 4096 * 14336 */
    ok(decoder_layer_nelem(&run.model) == 218103808.0, "elements of a layer of Llama 3 8B");
    ok(decoder_ends_nelem(&run.model) == 2 * 525336576.0, "embedding and head");
    decoder_layer_work(&layer, &run.model, &batch);
    for (int i = 0; i < layer.nitems; i++)
        if (layer.item[i].phases & FSDP_WORK_FORWARD)
            flops += layer.item[i].times * fsdp_work_flops(&layer.item[i]);
    /* 2 * 218103808 a token, and 4 * 4096 for each of 4096 keys */
    ok(near(flops, 8192 * (436207616.0 + 4.0 * 4096 * 4096)), "FLOP of its forward pass: %.0f",
       flops);
    batch.again = (struct decoder_again){1, 1, 1};
    decoder_layer_work(&again, &run.model, &batch);
    batch.again = (struct decoder_again){.5, .5, .5};
    decoder_layer_work(&half, &run.model, &batch);
    const struct fsdp_clock clock = round_clock();
    const double forward = decoder_seconds(&again, FSDP_WORK_FORWARD, &clock.device);
    ok(near(decoder_seconds(&again, FSDP_WORK_RECOMPUTE, &clock.device), forward) &&
           near(decoder_seconds(&half, FSDP_WORK_RECOMPUTE, &clock.device), forward / 2) &&
           decoder_seconds(&layer, FSDP_WORK_RECOMPUTE, &clock.device) == 0,
       "recomputation repeats forward, half of it, or nothing");
}

static void test_by_hand(void)
{
    const struct fsdp_clock clock = round_clock();
    const struct foreign_run one = llama(1, 1, 1), two = llama(2, 1, 1), pipe = llama(1, 4, 1);
    const struct foreign_times t = timed(&one, &clock), t2 = timed(&two, &clock),
                               t4 = timed(&pipe, &clock);
    /* 28 bytes of each of 32 * 218103808 + 1050673152 elements at 1000 GB/s */
    const double update = 28 * (32 * 218103808.0 + 1050673152.0) / 1e12;

    ok(near(t.step_s, t.compute_s + update), "one GPU computes and updates: %.3f s", t.step_s);
    ok(t.tensor_s == 0 && t.bubble_s == 0 && t.pipe_s == 0 && t.data_s == 0, "and nothing else");
    ok(near(t.tokens_per_s, 4 * 8192 / t.step_s), "its tokens per second");
    /* 4 micro-steps, 32 layers, 8 transfers of 8192 * 4096 * 2 bytes, half of each over 100 GB/s */
    ok(near(t2.tensor_s, 4 * 32 * 8 * 8192.0 * 4096 * 2 / 2 / 1e11), "two tensor ranks: %.4f s",
       t2.tensor_s);
    /* compute of a stage without the head: a twelfth of what the other three stages took off it */
    ok(near(t4.bubble_s, 3 * ((t.compute_s - t4.compute_s) / 12 + t4.pipe_s / 4)),
       "a pipeline of 4 stages waits for three of its micro-steps without the head: %.3f s",
       t4.bubble_s);
    /* 2 directions of 8192 * 4096 * 2 bytes a micro-step at 10 GB/s */
    ok(near(t4.pipe_s, 4 * 2 * 8192.0 * 4096 * 2 / 1e10), "what it sends: %.4f s", t4.pipe_s);
}

static void test_laws(void)
{
    static const int tp[] = {1, 2, 8}, pp[] = {1, 2, 4}, cp[] = {1, 2};
    static const enum foreign_data data[] = {FOREIGN_DDP, FOREIGN_ZERO1, FOREIGN_ZERO2,
                                             FOREIGN_ZERO3};
    bool faster = true, positive = true, sum = true, interleaved = true;

    for (int i = 0; i < 3 * 3 * 2 * 4; i++) {
        struct foreign_run run = llama(tp[i % 3], pp[i / 3 % 3], 16);
        struct fsdp_clock clock = round_clock();
        run.batch.cp = cp[i / 9 % 2];
        run.data = data[i / 18];
        const struct foreign_times slow = timed(&run, &clock);
        positive &= slow.step_s > 0 && slow.data_s >= 0 && slow.slowed_s >= 0;
        sum &= slow.step_s >= slow.compute_s + slow.tensor_s + slow.context_s + slow.pipe_s +
                                  slow.bubble_s + slow.data_s + slow.slowed_s;
        clock.net.nic_nbytes_per_s *= 2;
        const double nic = timed(&run, &clock).step_s;
        clock.net.node_nbytes_per_s *= 2;
        const double node = timed(&run, &clock).step_s;
        clock.device.flops_16 *= 2;
        faster &= nic <= slow.step_s && node <= nic && timed(&run, &clock).step_s < node;
        clock = round_clock();
        run.vpp = 2;
        interleaved &= timed(&run, &clock).bubble_s <= slow.bubble_s + slow.pipe_s;
    }
    ok(positive, "times are positive");
    ok(sum, "parts are parts of the step");
    ok(faster, "faster links and products are never slower");
    ok(interleaved, "more chunks of a stage wait less");
}

int main(void)
{
    test_decoder();
    test_by_hand();
    test_laws();
    return tap_done();
}
