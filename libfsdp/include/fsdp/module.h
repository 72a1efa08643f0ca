/* SPDX-License-Identifier: Apache-2.0 */
/*
 * module.h: how a model describes itself to the engine: a tree of modules in execution order, their
 * parameters, and the activation bytes each needs. A module of the tree is something the model's
 * code enters and leaves (fsdp.h); the wrap policy decides which of them become units.
 */
#ifndef FSDP_MODULE_H
#define FSDP_MODULE_H

#include "fsdp/base.h"
#include "fsdp/clock.h"
#include "fsdp/device.h"

#ifdef __cplusplus
extern "C" {
#endif

struct fsdp_module_tree;

enum {
    FSDP_PARAM_FROZEN = 1,  /* gathered like the others, not trained */
    FSDP_PARAM_IGNORED = 2, /* whole on every rank, not trained */
    /* Sharded, never gathered, not trained: what the model does not compute with, but its
     * checkpoints have. A view shows NULL. */
    FSDP_PARAM_CARRIED = 4,
    FSDP_PARAM_LINEAR = 8, /* the matrix of a linear map: fsdp_opts.frozen_in_nf4 is about these */
    /* Its modules also take it as codes of 8 bits: where it is gathered in them, it is not decoded
     * (fsdp_view.amax). */
    FSDP_PARAM_CODES = 16,
};

/* Empty tree. Its names are copied. */
int fsdp_module_tree_create(struct fsdp_module_tree **out, struct fsdp_err *err);
void fsdp_module_tree_destroy(struct fsdp_module_tree *tree);

/* Adds a module after the ones already there (execution order of the forward pass, parents before
 * children; the first is the root, with parent -1) and gives its index. class_name is what the
 * `transformer` wrap policy matches, such as "LlamaDecoderLayer". */
int fsdp_module_add(struct fsdp_module_tree *tree, int parent, const char *name,
                    const char *class_name, int *out, struct fsdp_err *err);
/* A parameter. Its dtype in checkpoints and masters is fp32; the gathered copy has
 * fsdp_opts.param_dtype. */
struct fsdp_param_desc {
    const char *name; /* the full one (Hugging Face's) */
    int ndim;
    const uint64_t *shape; /* [ndim] */
    struct fsdp_init init; /* its value in a run that starts from random weights */
    unsigned flags;        /* FSDP_PARAM_* */
    /* Parameters of a module with the same number share the scale of a gather_codec, where they are
     * trained alike; 0: it has a scale of its own. */
    int scale_group;
};
/* Adds a parameter to a module and gives its index. desc is copied. */
int fsdp_module_add_param(struct fsdp_module_tree *tree, int module,
                          const struct fsdp_param_desc *desc, int *out, struct fsdp_err *err);
/* Declares that `alias` is another name of parameter `param` (tied weights), used in `module`. Both
 * modules are then kept in one unit. */
int fsdp_module_tie(struct fsdp_module_tree *tree, int module, int param, const char *alias,
                    struct fsdp_err *err);

/* Bytes of activations for one micro-batch:
 *   saved       live from the module's forward to its backward
 *   recomputed  freed after forward and made again in backward under activation checkpointing; else
 *               live like saved
 *   cheap       likewise, but cheap to make again, so that selective checkpointing frees it, too
 *   work        live only between one enter and its leave
 * With fsdp_opts.offload_activations all but the root's hold their values only while the module
 * directly inside the root that the module is, or is in, is entered. */
struct fsdp_act_bytes {
    size_t saved, recomputed, work, cheap;
};
/* Local. */
int fsdp_module_set_act(struct fsdp_module_tree *tree, int module, struct fsdp_act_bytes bytes,
                        struct fsdp_err *err);

/* Adds a piece of what a module itself computes for one micro-batch, for the clock; what the
 * modules inside it compute is theirs. A tree in which no module has any is taken to compute 2 FLOP
 * for each parameter and token forward, and 4 backward. *work is copied. Local. */
int fsdp_module_add_work(struct fsdp_module_tree *tree, int module, const struct fsdp_work *work,
                         struct fsdp_err *err);

int fsdp_module_count(const struct fsdp_module_tree *tree);
/* The pieces of a module's own work, *nwork of them; they live as long as nothing is added. Local.
 */
const struct fsdp_work *fsdp_module_work(const struct fsdp_module_tree *tree, int module,
                                         int *nwork);

/* Number of parameters of the tree. An alias does not count. */
int fsdp_param_count(const struct fsdp_module_tree *tree);
/* Lives as long as the tree. */
const char *fsdp_module_name(const struct fsdp_module_tree *tree, int module);
/* Name and shape of a parameter, dtype F32. The name lives as long as the tree. */
struct fsdp_tensor fsdp_param_tensor(const struct fsdp_module_tree *tree, int param);
/* Elements of all parameters together. */
uint64_t fsdp_param_nelem_total(const struct fsdp_module_tree *tree);
/* Alias k of the tree: its name and the parameter it names. Returns false past the last one. */
bool fsdp_module_alias(const struct fsdp_module_tree *tree, int k, const char **alias, int *param);

#ifdef __cplusplus
}
#endif
#endif
