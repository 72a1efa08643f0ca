/* SPDX-License-Identifier: Apache-2.0 */
/* flops.h: how many floating-point operations a decoder-only language model takes for a token. An
 * operation is a multiplication or an addition of a product of matrices; norms, activations and
 * look-ups of embeddings are not counted, nor is recomputation. Pure. */
#ifndef PLAN_FLOPS_H
#define PLAN_FLOPS_H

#include "fsdp/base.h"

struct flops_model {
    int nlayers;
    /* Elements of a layer's matrices that each token goes through: projections of attention, a
     * dense MLP, a router, shared experts. */
    double layer;
    /* And of one expert, of which each token goes through `active`. */
    double expert;
    int active;
    /* Queries' heads, and dimensions of a head: of keys (head_dim) and of values, 0: as of keys. */
    int nheads, head_dim, value_dim;
    bool bidirectional; /* attention sees the tokens that follow, too */
    /* The last `nwindowed` layers see at most `window` tokens, the own one included. */
    int nwindowed;
    int64_t window;
    double head;   /* elements of the matrix of the logits */
    double frozen; /* elements of all of these matrices that are not trained */
};

/* Mean number of tokens that a token of a row of T sees. window 0: all that come before it, and
 * itself. */
double flops_keys(int64_t T, int64_t window, bool bidirectional);
/* Of a token, as the mean over a row of T tokens: forward, and forward and backward. */
double flops_forward(const struct flops_model *model, int64_t T);
double flops_train(const struct flops_model *model, int64_t T);

#endif
