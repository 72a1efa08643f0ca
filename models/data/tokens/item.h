/* SPDX-License-Identifier: Apache-2.0 */
/* item.h: a unit of work (lines, or a piece of a text) and its resulting tokens. */
#ifndef ENCODE_ITEM_H
#define ENCODE_ITEM_H

#include "data/line/crossed.h"
#include "reader.h"

struct vocab_train;

struct encode_item {
    /* Input. */
    const char *path; /* what errors name */
    bool is_lines, is_json;
    bool first, last; /* of the pieces of a text */
    char *text;
    size_t nbytes, room;
    uint64_t nlines;                   /* of the file, behind it */
    struct encode_place begins, after; /* of a text: where the next piece begins */

    /* Output. */
    int32_t *ids;
    bool *learned;
    size_t ntokens, ids_room, learned_room;
    bool has_ignored;
    /* Of lines, the documents: where they end among ids. Of a piece of several, the tokens: how
     * many bytes of it they and those before them cover. */
    size_t *ends;
    size_t nends, ends_room;
    uint64_t text_nbytes, nbad; /* of lines */
    struct fsdp_err bad;        /* why the first line was left out */
    struct data_crossed crossed;
    int rc;
    struct fsdp_err err;
};
void encode_item_free(struct encode_item *item);

/* The state of a worker thread. */
struct encode_worker {
    const struct encode_opts *opts;
    const struct data_text *text;
    struct data_line line;
    struct vocab_train *train; /* counts words in place of making tokens; NULL: it does not */
};
void encode_worker_init(struct encode_worker *worker, const struct encode_opts *opts,
                        const struct data_text *text);
void encode_worker_free(struct encode_worker *worker);
/* Fills the output. If a line is an error, the output holds the documents before it. */
void encode_item_work(struct encode_item *item, struct encode_worker *worker);

/* A line's words; words.c. */
int encode_count_line(struct encode_item *item, struct encode_worker *worker, const char *text,
                      size_t nbytes, struct fsdp_err *err);

#endif
