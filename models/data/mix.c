/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "mix.h"

/* Whole numbers, so that every machine computes the same: they are about 2^UNIT_BITS in all, which
 * makes a share wrong by one row in 2^UNIT_BITS. */
enum { UNIT_BITS = 40 };

/* Nodes 0 .. nsources - 1 are the sources, the last one is the root. */
struct node {
    uint64_t weight;
    int left, right; /* -1: a source */
    bool joined;
};

struct data_mix {
    int nsources, nnodes;
    struct node *nodes;
};

static int lightest(struct data_mix *mix)
{
    int best = -1;

    for (int i = 0; i < mix->nnodes; i++)
        if (!mix->nodes[i].joined && (best < 0 || mix->nodes[i].weight < mix->nodes[best].weight))
            best = i;
    mix->nodes[best].joined = true;
    return best;
}

static void join_nodes(struct data_mix *mix)
{
    while (mix->nnodes < 2 * mix->nsources - 1) {
        const int left = lightest(mix), right = lightest(mix);
        mix->nodes[mix->nnodes++] =
            (struct node){mix->nodes[left].weight + mix->nodes[right].weight, left, right, false};
    }
}

int data_mix_create(struct data_mix **out, const double *weights, int nsources,
                    struct fsdp_err *err)
{
    double sum = 0;

    for (int i = 0; i < nsources; i++)
        sum += weights[i] > 0 && isfinite(weights[i]) ? weights[i] : NAN;
    if (nsources < 1 || !isfinite(sum))
        return fsdp_err_set(err, FSDP_EINVAL, "data: weights of sources must be positive numbers");
    struct data_mix *mix = fsdp_alloc(1, sizeof *mix, "mixture", err);
    if (!mix)
        return FSDP_ENOMEM;
    mix->nodes = fsdp_alloc(2 * (size_t)nsources, sizeof *mix->nodes, "mixture", err);
    if (!mix->nodes) {
        fsdp_free(mix);
        return FSDP_ENOMEM;
    }
    mix->nsources = mix->nnodes = nsources;
    for (int i = 0; i < nsources; i++) {
        const double unit = ldexp(weights[i] / sum, UNIT_BITS);
        mix->nodes[i] = (struct node){unit < 1 ? 1 : (uint64_t)llround(unit), -1, -1, false};
    }
    join_nodes(mix);
    *out = mix;
    return FSDP_OK;
}

void data_mix_destroy(struct data_mix *mix)
{
    if (mix)
        fsdp_free(mix->nodes);
    fsdp_free(mix);
}

/* How many of a node's first k rows are its left child's. */
static uint64_t left_count(const struct data_mix *mix, const struct node *node, uint64_t k)
{
    const uint64_t left = mix->nodes[node->left].weight;
    return (uint64_t)((2 * (__uint128_t)k * left + node->weight) / (2 * node->weight));
}

void data_mix_at(const struct data_mix *mix, uint64_t row, int *source, uint64_t *source_row)
{
    int at = mix->nnodes - 1;

    while (mix->nodes[at].left >= 0) {
        const struct node *node = &mix->nodes[at];
        const uint64_t left = left_count(mix, node, row);
        const bool is_left = left_count(mix, node, row + 1) > left;
        at = is_left ? node->left : node->right;
        row = is_left ? left : row - left;
    }
    *source = at;
    *source_row = row;
}

static void count_below(const struct data_mix *mix, int at, uint64_t nrows, uint64_t *counts)
{
    while (mix->nodes[at].left >= 0) {
        const struct node *node = &mix->nodes[at];
        const uint64_t left = left_count(mix, node, nrows);
        count_below(mix, node->left, left, counts);
        nrows -= left;
        at = node->right;
    }
    counts[at] = nrows;
}

void data_mix_counts(const struct data_mix *mix, uint64_t nrows, uint64_t *counts)
{
    count_below(mix, mix->nnodes - 1, nrows, counts);
}

double data_mix_share(const struct data_mix *mix, int source)
{
    return (double)mix->nodes[source].weight / (double)mix->nodes[mix->nnodes - 1].weight;
}

uint64_t data_mix_hash(const struct data_mix *mix, uint64_t seed)
{
    for (int i = 0; i < mix->nsources; i++)
        seed = fsdp_hash(seed, &mix->nodes[i].weight, sizeof mix->nodes[i].weight);
    return seed;
}
