/* SPDX-License-Identifier: Apache-2.0 */
/*
 * join.h: joins the tokens of a long text's pieces. Each piece overlaps the beginning of the next
 * one. Both have tokens for the shared text:
 *
 *      A  ... |the| ca|t s|at on| the| m|at      A lacks the text after its end,
 *      B              |s|at on| the| mat|. ...   B the text before its beginning.
 *                              ^
 * They are joined at a place between a word and white space where both have a token boundary and
 * the same tokens over some distance on each side. The text that A or B lacks does not influence
 * tokens there. If there is no such place, both are tokenized together as one text.
 */
#ifndef ENCODE_JOIN_H
#define ENCODE_JOIN_H

#include "item.h"
#include "writer.h"

struct encode_join {
    const struct encode_sizes *sizes;
    struct tokens_writer *writer;
    struct encode_worker worker;
    bool anywhere;           /* tokens are bytes: any place will do */
    struct encode_item held; /* the piece before, whose tokens behind `joined` are not written */
    bool has_held;
    /* The text of pieces that could not be joined, held's the last of it; its nbytes 0: none. */
    struct encode_item whole;
    uint64_t joined; /* bytes of the file whose tokens are written */
    uint64_t nbytes; /* of all files; up to where a later piece begins */
    /* Where work can continue: from this place, behind joined. */
    struct encode_place place;
    bool is_clean; /* all that was given is written up to there */
};
/* Takes the next piece and exchanges its buffers. Returns errors of the piece. */
int encode_join_put(struct encode_join *join, struct encode_item *piece, struct fsdp_err *err);
void encode_join_free(struct encode_join *join);

#endif
