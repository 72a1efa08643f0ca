/* SPDX-License-Identifier: Apache-2.0 */
/* Failures on their way between ranks: kind, rank, culprit and the place of the reason, four
 * little-endian int32, then the text and a zero byte. */
#include <endian.h>
#include <string.h>

#include "tree_impl.h"

enum { NFIELDS = 4 };

struct boot_frame tree_words_frame(struct tree_words *words, uint32_t type,
                                   const struct fsdp_err *err)
{
    const int32_t fields[NFIELDS] = {err->kind, err->rank, err->culprit, err->cause};
    const size_t ntext = strlen(err->text) + 1;

    for (int i = 0; i < NFIELDS; i++) {
        const uint32_t field = htole32((uint32_t)fields[i]);
        memcpy(words->data + i * sizeof field, &field, sizeof field);
    }
    memcpy(words->data + sizeof fields, err->text, ntext);
    return (struct boot_frame){
        .type = type, .rank = err->rank, .nbytes = sizeof fields + ntext, .data = words->data};
}

/* What is out of its range is not known. */
static int field_at(const struct boot_frame *f, int i, int least, int end)
{
    uint32_t field;

    memcpy(&field, f->data + i * sizeof field, sizeof field);
    const int32_t value = (int32_t)le32toh(field);
    return value >= least && value < end ? value : least;
}

void tree_words_read(struct fsdp_err *out, const struct boot_tree *tree, const struct boot_frame *f)
{
    const size_t nhead = NFIELDS * sizeof(int32_t);

    if (f->nbytes <= nhead) {
        fsdp_err_set(out, FSDP_EPEER, "no reason given");
        return;
    }
    fsdp_err_set(out, FSDP_EPEER, "%s", (const char *)f->data + nhead);
    out->kind = (enum fsdp_err_kind)field_at(f, 0, FSDP_ERR_PLAIN, FSDP_ERR_GAVE_UP + 1);
    out->rank = field_at(f, 1, -1, tree->size);
    out->culprit = field_at(f, 2, -1, tree->size);
    out->cause = field_at(f, 3, 0, (int)strlen(out->text) + 1);
    out->of_other = out->kind == FSDP_ERR_GAVE_UP && out->culprit == out->rank;
}
