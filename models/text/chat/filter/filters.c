/* SPDX-License-Identifier: Apache-2.0 */
#include "filters.h"
#include "text/chat/value/unicode.h"

static const struct chat_builtin *const tables[] = {
    chat_text_filters,  chat_list_filters,  chat_choice_filters,
    chat_order_filters, chat_value_filters,
};

const struct chat_builtin *chat_filter_find(const struct chat_str *name)
{
    const struct chat_builtin *found = NULL;

    for (size_t i = 0; !found && i < sizeof tables / sizeof *tables; i++)
        found = chat_builtin_find(tables[i], name);
    return found;
}
