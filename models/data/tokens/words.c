/* SPDX-License-Identifier: Apache-2.0 */
/* The words of an item's lines, counted for a vocabulary. */
#include <inttypes.h>

#include "item.h"
#include "text/train/vocab_train.h"

/* A document's text, which became a token a byte. */
static int add_document(struct encode_worker *w, struct fsdp_err *err)
{
    const struct data_line *line = &w->line;
    char *text = fsdp_alloc_unset(line->ntokens + 1, 1, "text", err);

    if (!text)
        return FSDP_ENOMEM;
    for (size_t i = 0; i < line->ntokens; i++)
        text[i] = (char)line->tokens[i];
    const int rc = vocab_train_add(w->train, text, line->ntokens, err);
    fsdp_free(text);
    return rc;
}

int encode_count_line(struct encode_item *item, struct encode_worker *w, const char *text,
                      size_t nbytes, struct fsdp_err *err)
{
    if (item->is_json) {
        FSDP_TRY(data_line_parse(&w->line, text, nbytes, err));
        return add_document(w, err);
    }
    const int rc = vocab_train_add(w->train, text, nbytes, err);
    return rc ? fsdp_err_prefix(err, rc, "%s:%" PRIu64 ": ", item->path, w->line.number) : FSDP_OK;
}
