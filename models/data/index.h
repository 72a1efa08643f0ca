/* SPDX-License-Identifier: Apache-2.0 */
/* index.h: the index of a token file that lies at an address. */
#ifndef DATA_INDEX_H
#define DATA_INDEX_H

#include "data/source/remote.h"
#include "data/tokens/tokens.h"

/* Copies address.index and what belongs to it, and opens it for a token file of nbytes. *out NULL:
 * there is none. Errors are those of tokens_open and of the store. Local, blocks. */
int data_index_fetch(struct tokens **out, const char *address, uint64_t nbytes,
                     const struct data_remote *remote, struct fsdp_err *err);

#endif
