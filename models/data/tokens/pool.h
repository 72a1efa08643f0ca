/* SPDX-License-Identifier: Apache-2.0 */
/* pool.h: threads that process items. Items are returned in the order in which they were given. */
#ifndef ENCODE_POOL_H
#define ENCODE_POOL_H

#include "item.h"

struct encode_pool;
int encode_pool_create(struct encode_pool **out, int nthreads, const struct encode_opts *opts,
                       const struct data_text *text, struct fsdp_err *err);
/* Waits for the items that are being worked on. */
void encode_pool_destroy(struct encode_pool *pool);
/* The threads'. While no item is under way. */
struct encode_worker *encode_pool_workers(struct encode_pool *pool, int *nworkers);
/* An item to fill; NULL: all are in use. */
struct encode_item *encode_pool_free_item(struct encode_pool *pool);
/* Gives the item that encode_pool_free_item gave. */
void encode_pool_give(struct encode_pool *pool);
bool encode_pool_is_empty(const struct encode_pool *pool);
/* The oldest item; NULL: it was not finished within `seconds`. */
struct encode_item *encode_pool_wait(struct encode_pool *pool, double seconds);
/* Releases the item of encode_pool_wait. */
void encode_pool_release(struct encode_pool *pool);

#endif
