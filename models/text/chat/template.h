/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CHAT_TEMPLATE_H
#define CHAT_TEMPLATE_H

#include "chat.h"
#include "text/chat/syntax/tree.h"

struct chat_template {
    struct chat_run run; /* of the compilation: holds the tree */
    struct chat_tree *tree;
    char *name;
    json_t *tokens;                   /* variables of the model; NULL: none */
    struct chat_template *with_tools; /* rendered instead where there are tools; NULL: none */
};

#endif
