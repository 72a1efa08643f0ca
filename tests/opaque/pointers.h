/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pointers.h: what opaque.c lets work on a device be given: the device's memory, that of
 * communicators (which ranks share), and page-locked memory of the host. A kernel of a GPU that is
 * given any other memory of the host ends the run, and so does this.
 */
#ifndef OPAQUE_POINTERS_H
#define OPAQUE_POINTERS_H

#include <stddef.h>

#include "nn/nn.h"

/* Memory that may be given from now on, and no more. */
void pointers_add(const void *at, size_t nbytes);
void pointers_remove(const void *at);
/* NULL is no memory. */
void pointers_check(const char *op, const void *const *all, size_t n);

#define POINTERS_LIST(...) __VA_ARGS__
/* POINTERS_CHECK("adamw", (p, q, r)) */
#define POINTERS_CHECK(op, list)                                                                   \
    do {                                                                                           \
        const void *const pointers_of_op[] = {POINTERS_LIST list};                                 \
        pointers_check(op, pointers_of_op, sizeof pointers_of_op / sizeof *pointers_of_op);        \
    } while (0)

/* The CPU's operators, checked. */
void opaque_nn_fill(struct nn_ops *ops);

#endif
