/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CHAT_LEXER_H
#define CHAT_LEXER_H

#include "text/chat/value/run.h"

enum chat_token_kind {
    CHAT_T_EOF,
    CHAT_T_DATA,
    CHAT_T_VAR_BEGIN,
    CHAT_T_VAR_END,
    CHAT_T_BLOCK_BEGIN,
    CHAT_T_BLOCK_END,
    CHAT_T_NAME,
    CHAT_T_STRING,
    CHAT_T_NUMBER,
    CHAT_T_OP
};

/* op of CHAT_T_OP: one or two characters. */
#define CHAT_OP2(a, b) ((a) | (b) << 8)

struct chat_token {
    enum chat_token_kind kind;
    int line;
    int op;
    struct chat_val value; /* text of DATA, NAME and STRING; the number */
};

/* All tokens of a template, ended by CHAT_T_EOF. White space control is done. */
int chat_lex(struct chat_run *r, struct chat_token **out, const char *source, size_t nbytes);

#endif
