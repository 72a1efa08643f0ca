/* SPDX-License-Identifier: Apache-2.0 */
/* backends.h: the communication backends. A new one is a folder, and a row in backends.c. */
#ifndef FSDP_COMM_BACKENDS_H
#define FSDP_COMM_BACKENDS_H

#include "fsdp/sys/comm_ops.h"

enum { COMM_BACKEND_AUTO = -1 };

struct comm_backend {
    const char *name;
    /* NULL where it is not there, or not for this device; `why` (one line) says so. */
    const struct fsdp_comm_ops *(*load)(const struct fsdp_device *device, char *why,
                                        size_t why_nbytes);
    /* Is it what "auto" means for a group of `size` ranks? NULL: it is taken by name alone. */
    bool (*fits)(int size, const struct fsdp_device *device);
};

/* [comm_backends_count()], in the order in which "auto" asks. */
extern const struct comm_backend comm_backends[];
int comm_backends_count(void);
/* The index of the first that fits. */
int comm_backend_for(int size, const struct fsdp_device *device);

#endif
