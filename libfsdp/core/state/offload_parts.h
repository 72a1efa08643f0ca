/* SPDX-License-Identifier: Apache-2.0 */
/* offload_parts.h: what is offloaded of a flat, part by part. */
#ifndef CORE_OFFLOAD_PARTS_H
#define CORE_OFFLOAD_PARTS_H

#include "offload.h"

enum { OFFLOAD_PART_ALIGN = 4096, OFFLOAD_MAX_PARTS = 3 + MAX_SLOTS };

struct offload_part {
    void **at;            /* of the flat_state that is asked about */
    uint64_t pos, nbytes; /* pos: in a slot */
    enum offload_home home;
};

/* The parts of a flat, in the order in which they lie in a slot; `at` points into s. Returns their
 * number. Pure. */
int offload_parts(struct offload_part parts[OFFLOAD_MAX_PARTS], const struct fsdp *f, int flat,
                  struct flat_state *s);
/* The same and, of parameters that live on the device, the gathered copy: for an update on the
 * host. */
int offload_parts_for_host(struct offload_part parts[OFFLOAD_MAX_PARTS], const struct fsdp *f,
                           int flat, struct flat_state *s);
uint64_t offload_parts_end(const struct offload_part *parts, int n);
/* The parts that live there, which follow each other: the first of them, and their number. */
const struct offload_part *offload_parts_at(const struct offload_part *parts, int n,
                                            enum offload_home home, int *nthere);
/* base: where the first part is; NULL: nowhere. */
void offload_parts_point(const struct offload_part *parts, int n, char *base);
/* Where a master is the gathered copy the two move together. */
void offload_join_master(const struct fsdp *f, int flat, struct flat_state *s);

#endif
