/* SPDX-License-Identifier: Apache-2.0 */
/* index.h: the index of a token file at an address. */
#ifndef DATA_INDEX_H
#define DATA_INDEX_H

#include "data/source/remote.h"
#include "data/tokens/tokens.h"

/* Copies the index of the token file at `address` and its .learned file, and opens them. nbytes:
 * size of the token file. *out NULL: there is no index. Errors are those of tokens_open and of the
 * store. Local, blocks. */
int data_index_fetch(struct tokens **out, const char *address, uint64_t nbytes,
                     const struct data_remote *remote, struct fsdp_err *err);

#endif
