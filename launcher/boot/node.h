/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BOOT_NODE_H
#define BOOT_NODE_H

#include "sys/boot_ops.h"

/* What tells nodes apart (boot_facts.node_key). Two machines may have one name, and two containers
 * one boot id; together they do. */
void boot_node_key(char *out, size_t nbytes, const char *host);

#endif
