/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gradcheck.h: is a model's backward pass the derivative of its forward pass? Compares the
 * gradients with central finite differences of the loss, along several directions in each
 * parameter. It needs the engine's public headers alone, so that it serves any model written
 * against them.
 *
 * The engine is one of a single rank, created with gradcheck_opts. Losses are in fp32, so agreement
 * is to about three digits; an error in a formula shows as 1e-2 and more.
 */
#ifndef GRADCHECK_H
#define GRADCHECK_H

#include "fsdp/fsdp.h"

/* One pass between fsdp_micro_begin and fsdp_micro_end: forward (FSDP_EVAL), or with `train`
 * forward and backward (FSDP_TRAIN). Adds the loss to *loss on the compute lane; the gradients must
 * be those of this loss. The same loss each time it is called with the same parameters. */
typedef int gradcheck_pass_f(void *ctx, struct fsdp *f, bool train, double *loss,
                             struct fsdp_err *err);

struct gradcheck_row {
    const char *name; /* of the parameter; lives as long as the tree */
    double grad_norm; /* as the backward pass gave it */
    double worst;     /* largest relative difference over the directions; INFINITY: not finite */
    bool below_noise; /* the gradient is too small for fp32 losses to tell */
};

/* Options of an engine whose gradients can be read back: fp32, no clipping, one micro-step. */
struct fsdp_opts gradcheck_opts(void);

/* Fills the parameters with values under which every part of a usual model matters: matrices so
 * that products keep their input's size, vectors 0.3 around their initial values. Call
 * fsdp_init_params first. Collective, blocks. */
int gradcheck_randomize(struct fsdp *f, const struct fsdp_module_tree *tree, uint64_t seed,
                        struct fsdp_err *err);

/* rows: one per parameter of the tree. ndirections: at least 1, per parameter. Parameters keep
 * their values; optimizer steps of learning rate 0 are taken. FSDP_EINVAL: no directions, or not a
 * single rank. Collective, blocks. */
int gradcheck_run(struct gradcheck_row *rows, struct fsdp *f, const struct fsdp_module_tree *tree,
                  int ndirections, uint64_t seed, gradcheck_pass_f *pass, void *ctx,
                  struct fsdp_err *err);

#endif
