/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What torch's names mean. A state dict is nested; DCP joins its keys with dots and keeps the path
 * of each name. The path decides: a module may be called `model` or `state` itself.
 *
 * For a parameter P = layers.0.weight:
 *
 *     stored name            path                       own name
 *     model.P                model, P                   P
 *     app.model.P            app, model, P              P
 *     optim.state.P.exp_avg  optim, state, P, exp_avg   state.P.exp_avg
 *     optim.state.P.exp_avg  optim, state.P.exp_avg     state.P.exp_avg   (flattened by torch)
 *     train_state.step       train_state, step          train_state.step  (role: other)
 *     P                      P                          P
 *
 * A container is an optimizer if it has `state` and its key begins with `optim`, if it has `state`
 * and `param_groups`, or if it has `state` with an optimizer's tensor, such as exp_avg, of a
 * parameter. Where a container `model` exists, the tensors outside of it are no weights. At the
 * root Lightning and others call it `state_dict` or `model_state_dict`.
 */
#ifndef CKPT_DCP_NAMES_H
#define CKPT_DCP_NAMES_H

#include "ckpt/ckpt.h"
#include "format/pickle/pickle.h"

/* An entry of the state dict: a tensor or a Python value. */
struct ckpt_dcp_name {
    const char *stored;         /* in; borrowed */
    const struct ckpt_pk *path; /* in; texts and integers, or NULL: not kept */
    uint32_t container_nbytes;  /* out: stored + container_nbytes is its own name */
    uint32_t outer_nbytes;      /* out: bytes of ckpt_dcp_name_here that are containers */
    enum ckpt_role role;        /* out, of a tensor */
    bool is_tensor;             /* in */
};

/* Fills in all entries of a checkpoint; afterwards ckpt_dcp_name_here differs for all tensors whose
 * stored names differ. A path that does not spell its name is set to NULL. */
int ckpt_dcp_names_settle(struct ckpt_dcp_name *names, size_t count, struct fsdp_err *err);
/* The tensor's name here: its own one; with its containers where these are not at the root, or
 * where two tensors have the same own name. Borrowed, part of stored. */
const char *ckpt_dcp_name_here(const struct ckpt_dcp_name *name);
/* May a value of this name hold weights? Not that of an optimizer, a scheduler, a data loader, a
 * random state or a module's extra state. */
bool ckpt_dcp_may_be_weights(const char *stored);
/* Is this the flat parameter of an FSDP1 unit, whose shards only the same job can read? */
bool ckpt_dcp_is_flat_param(const char *stored);

#endif
