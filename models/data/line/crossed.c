/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "crossed.h"
#include "text/chat/chat.h"

void data_crossed_add(struct data_crossed *crossed, const struct data_line *line)
{
    struct data_crossed_kind *kind = line->is_chat ? &crossed->chats : &crossed->others;

    kind->nlines++;
    if (line->is_crossed && !kind->ncrossed++)
        snprintf(kind->first, sizeof kind->first, "%.160s:%" PRIu64, line->path, line->number);
}

static void join_kind(struct data_crossed_kind *kind, const struct data_crossed_kind *behind)
{
    if (!kind->ncrossed)
        memcpy(kind->first, behind->first, sizeof kind->first);
    kind->ncrossed += behind->ncrossed;
    kind->nlines += behind->nlines;
}

void data_crossed_join(struct data_crossed *crossed, const struct data_crossed *behind)
{
    join_kind(&crossed->chats, &behind->chats);
    join_kind(&crossed->others, &behind->others);
}

void data_crossed_warn(const struct data_crossed *crossed, const struct data_text *text)
{
    const struct data_crossed_kind *chats = &crossed->chats, *others = &crossed->others;

    if (chats->ncrossed)
        fsdp_log(FSDP_LOG_WARN,
                 "data: in %" PRIu64 " of %" PRIu64
                 " chats (the first: %s) a token begins in the generation prompt of %s and ends "
                 "in the answer: the model does not learn how an answer begins. If the prompt "
                 "ends in a space, remove it there and write it before the message's content",
                 chats->ncrossed, chats->nlines, chats->first,
                 text->chat ? chat_template_name(text->chat) : "the chat template");
    if (others->ncrossed)
        fsdp_log(FSDP_LOG_WARN,
                 "data: in %" PRIu64 " of %" PRIu64
                 " documents (the first: %s) a token begins in the prompt and ends in the "
                 "completion, and is not learned. If the prompt ends in a space, move it to the "
                 "beginning of the completion",
                 others->ncrossed, others->nlines, others->first);
}
