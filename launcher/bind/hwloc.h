/* SPDX-License-Identifier: Apache-2.0 */
/* hwloc.h: the machine as hwloc sees it, for binding.c. Not in a build without hwloc.
 * HWLOC_XMLFILE and HWLOC_SYNTHETIC in the environment replace the machine; nothing is bound then.
 */
#ifndef BINDING_HWLOC_H
#define BINDING_HWLOC_H

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>

#include "fsdp/base.h"

struct machine;

int machine_open(struct machine **out, struct fsdp_err *err);
void machine_close(struct machine *machine);

/* Cores (hwloc's processing units, by the system's numbers) that this process may run on. */
void machine_allowed(const struct machine *machine, cpu_set_t *out);
/* Those near a PCI device, "0000:1b:00.0"; false: it is not known here. */
bool machine_near(const struct machine *machine, const char *pci, cpu_set_t *out);
/* The part of `set` that the rank at `place` of `nplaces` gets: whole cores with all their threads
 * in `set`, neighbours by cache, NUMA node and package, as many for each as for the others or
 * nearly. Returns how many; 0, and nothing in `out`, where there are fewer than places. */
int machine_split(const struct machine *machine, const cpu_set_t *set, int place, int nplaces,
                  cpu_set_t *out);
/* The network card nearest to a PCI device (NULL: to these cores), "mlx5_0"; the `place`-th where
 * several are as near, "" for none. InfiniBand and RoCE go before other Ethernet. */
void machine_nic(const struct machine *machine, const char *pci, const cpu_set_t *near, int place,
                 char *out, size_t nbytes);
/* "0-7,64-71 of NUMA node 0, package 0". */
void machine_describe(const struct machine *machine, const cpu_set_t *set, char *out,
                      size_t nbytes);
/* All threads of this process, and those that they start. */
int machine_bind(const struct machine *machine, const cpu_set_t *set, struct fsdp_err *err);

#endif
