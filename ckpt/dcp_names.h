/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What torch's names mean. A state dict is nested; DCP joins its keys with dots and keeps the path
 * of each name. The path decides: a module may be called `model` or `state` itself.
 *
 * For a parameter P = layers.0.weight:
 *
 *     stored name            path                       name here
 *     model.P                model, P                   P
 *     optim.state.P.exp_avg  optim, state, P, exp_avg   state.P.exp_avg
 *     optim.state.P.exp_avg  optim, state.P.exp_avg     state.P.exp_avg   (flattened by torch)
 *     train_state.step       train_state, step          train_state.step  (role: other)
 *     P                      P                          P
 */
#ifndef CKPT_DCP_NAMES_H
#define CKPT_DCP_NAMES_H

#include "ckpt/ckpt.h"
#include "pickle.h"

/* The role of the tensor `stored` with a path (a tuple of texts and integers, or NULL: not kept),
 * and its name here, freed with fsdp_free. `contained`: some tensor lies in a container `model`, so
 * that what lies outside is no weight. */
int ckpt_dcp_name(char **name, size_t *outer_nbytes, enum ckpt_role *role, const char *stored,
                  const struct ckpt_pk *path, bool contained, struct fsdp_err *err);
bool ckpt_dcp_is_contained(const struct ckpt_pk *path);
/* Is this the flat parameter of an FSDP1 unit, whose shards only the same job can read? */
bool ckpt_dcp_is_flat_param(const char *stored);

#endif
