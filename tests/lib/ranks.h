/* SPDX-License-Identifier: Apache-2.0 */
/* ranks.h: runs a function in N forked processes joined by an out-of-band channel, so that
 * distributed code is tested with ranks as processes and without a launcher. */
#ifndef RANKS_H
#define RANKS_H

#include "fsdp/comm.h"

/* Runs in the child; its return value is the exit status (0..255). */
typedef int rank_main_f(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg);

/* Forks nranks processes spread in blocks over nnodes emulated nodes (hosts "node0", "node1", ...)
 * and waits for them; any left after twice timeout_s (four times under a sanitizer) are killed.
 * statuses (may be NULL) gets wait statuses. Returns how many did not exit with 0. Children write
 * to the test's stdout only through diag. */
int ranks_run(int nranks, int nnodes, double timeout_s, rank_main_f *fn, void *arg, int *statuses);

/* The kind of device that engine tests open: TEST_DEVICE, else "cpu". */
const char *ranks_device(void);

#endif
