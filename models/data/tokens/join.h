/* SPDX-License-Identifier: Apache-2.0 */
/*
 * join.h: the tokens of a long text from those of its pieces. A piece goes beyond the beginning of
 * the next one. Both have tokens for what they share:
 *
 *      A  ... |the| ca|t s|at on| the| m|at      A lacks what is behind its end,
 *      B              |s|at on| the| mat|. ...   B what is before its beginning.
 *                              ^
 * They are joined where the text goes from a word to white space or back, both have a token that
 * ends there, and all their tokens are the same for a good distance to both sides: what A lacks
 * does not reach up to there, nor what B lacks. Where there is no such place, both together become
 * tokens as one text.
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
/* Takes the next piece; what it has is exchanged. Errors of the work are passed on. */
int encode_join_put(struct encode_join *join, struct encode_item *piece, struct fsdp_err *err);
void encode_join_free(struct encode_join *join);

#endif
