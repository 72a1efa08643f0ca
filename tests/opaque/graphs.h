/* SPDX-License-Identifier: Apache-2.0 */
/*
 * graphs.h: graphs of the opaque device. Calls on a lane are kept with the bytes of their arguments
 * and run at each launch, as those of a CUDA graph. Any other work ends the program. With
 * OPAQUE_GRAPHS=N the Nth capture fails, as one of a GPU that refuses something would.
 */
#ifndef OPAQUE_GRAPHS_H
#define OPAQUE_GRAPHS_H

#include "fsdp/sys/device_ops.h"

/* Puts graphs into a table of a device, over its own calls. */
void graphs_fill(struct fsdp_device_ops *ops);
/* Ends the program where this thread captures: `what` would run at once. */
void graphs_check(const char *what);

#endif
