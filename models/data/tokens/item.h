/* SPDX-License-Identifier: Apache-2.0 */
/* item.h: a piece of work: lines or a text, and the tokens of their documents. */
#ifndef ENCODE_ITEM_H
#define ENCODE_ITEM_H

#include "data/line/line.h"
#include "sources.h"

struct encode_item {
    /* What is to be done. */
    bool is_lines;
    const char *path; /* what errors name */
    uint64_t line;    /* lines of the file before it */
    char *text;
    size_t nbytes, room;
    struct encode_place after; /* of the sources, behind it */

    /* What came of it. */
    int32_t *ids;
    bool *learned;
    size_t ntokens, ids_room, learned_room;
    bool has_ignored;
    size_t *ends; /* of documents, among ids */
    size_t ndocuments, ends_room;
    uint64_t text_nbytes, nbad;
    struct fsdp_err bad; /* why the first line was left out */
    int rc;
    struct fsdp_err err;
};
void encode_item_free(struct encode_item *item);

/* What a thread has to work with. */
struct encode_worker {
    const struct encode_opts *opts;
    const struct data_text *text;
    struct data_line line;
};
void encode_worker_free(struct encode_worker *worker);
/* Fills what came of it, the documents before an error, too. */
void encode_item_work(struct encode_item *item, struct encode_worker *worker);

#endif
