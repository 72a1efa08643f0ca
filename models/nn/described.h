/* SPDX-License-Identifier: Apache-2.0 */
/* described.h: what plans of time ask of the operators of a GPU. */
#ifndef NN_DESCRIBED_H
#define NN_DESCRIBED_H

#include "nn/nn.h"

/* Of a GPU's operators: how many times as long as by cuDNN this attention takes, by model; 1 where
 * cuDNN computes it, in fp32, and for other operators. Of the shape, sizes, type, documents and the
 * variants are read. Of a GPU that is described (nn_cuda_described_ops), each reason why it is not
 * cuDNN's is logged once. Local. */
double nn_cuda_slowness(const struct nn_ops *ops, const struct nn_attention *shape);

/* Of a GPU's operators: are there products in 8 bits with scales of this kind, where there are any
 * in 8 bits? Else they are in 16. True for other operators. Local. */
bool nn_cuda_takes_scales(const struct nn_ops *ops, enum nn_f8_scale kind);

/* Of a GPU's operators: are there enough rows (places, of all experts) for products in 8 bits? With
 * few rows for each expert they are in 16, which is logged once of a GPU that is described. True
 * for other operators. Local. */
bool nn_cuda_experts_take_codes(const struct nn_ops *ops, double nplaces, int experts);

#endif
