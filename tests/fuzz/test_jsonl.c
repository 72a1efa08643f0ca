/* SPDX-License-Identifier: Apache-2.0 */
/* Documents of JSON Lines; the first byte chooses the vocabulary, a tokenizer, a chat template and
 * what is learned. */
#include "data/line/line.h"
#include "fuzz.h"
#include "text/chat/chat.h"
#include "text/tokenizer/tokenizer.h"

static const char template[] =
    "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}{% if m.tool_calls %}"
    "{{ m.tool_calls | tojson }}{% endif %}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}";

/* Kept: a target is called many times. */
static void open_both(struct data_text *text, uint8_t choice)
{
    static struct tokenizer *tokenizer;
    static struct chat_template *chat;

    if (!tokenizer && (tokenizer_open_bytes(&tokenizer, NULL) ||
                       chat_template_create(&chat, template, sizeof template - 1, "t", NULL)))
        abort();
    text->tokenizer = choice & 4 ? tokenizer : NULL;
    text->chat = choice & 8 ? chat : NULL;
    text->train_on = (enum data_train_on)((choice >> 4) % 3);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    struct data_text text = {.end = -1, .special = DATA_SPECIAL_EOS};
    struct data_line line = {.path = "a.jsonl", .text = &text, .highest = -1};
    if (nbytes && data[0] & 1)
        text.vocab_size = 256;
    if (nbytes && data[0] & 2)
        text.end = 0;
    if (nbytes)
        open_both(&text, data[0]);
    for (size_t at = 1, end; at < nbytes; at = end + 1) {
        const uint8_t *feed = memchr(data + at, '\n', nbytes - at);
        end = feed ? (size_t)(feed - data) : nbytes;
        line.number++;
        if (data_line_parse(&line, (const char *)data + at, end - at, NULL))
            continue;
        for (size_t i = 0; i < line.ntokens; i++)
            if (line.labels[i] != DATA_IGNORE && line.labels[i] < 0)
                abort();
        if (line.ntokens > line.room)
            abort();
    }
    data_line_free(&line);
    return 0;
}

FUZZ_TARGET("jsonl")
