/* SPDX-License-Identifier: Apache-2.0 */
/* saved.h: one file that torch.save wrote: its value, and where its storages are. */
#ifndef CKPT_SAVED_H
#define CKPT_SAVED_H

#include "format/archive/archive.h"
#include "format/archive/storage.h"

struct ckpt_saved {
    int file;         /* of the layout */
    const char *what; /* names it in errors; owned */
    struct ckpt_pickle pickle;
    char *data; /* which the pickle borrows */

    /* An archive's storages are found in it; of the legacy form they are listed. */
    struct ckpt_archive *archive;
    size_t nlegacy;
    struct ckpt_saved_storage {
        const struct ckpt_pk *key;
        struct ckpt_storage storage;
    } * legacy;
    struct ckpt_pickle keys;
};

/* Does a file begin as torch.save's do: as an archive or in the legacy form? Reads `nbytes`, at
 * most CKPT_SAVED_PROBE_NBYTES, of its head. */
enum { CKPT_SAVED_PROBE_NBYTES = 16 };
bool ckpt_saved_is(const void *head, size_t nbytes);

/* Reads a file of the layout, but for the bytes of its tensors. parse: of its value. */
int ckpt_saved_open(struct ckpt_saved *out, struct ckpt *ckpt, int file,
                    ckpt_archive_parse_f *parse, struct fsdp_err *err);
/* Zeroed is closed. */
void ckpt_saved_close(struct ckpt_saved *saved);
/* The storage that a view is of. */
int ckpt_saved_storage(struct ckpt_storage *out, const struct ckpt_saved *saved,
                       const struct ckpt_view_args *view, struct fsdp_err *err);
/* Refuses a file that is not as torch_write.h makes them: an archive of a dict of tensors and of
 * nothing else. Values, and dicts in the dict, an optimizer's among them, are of others. */
int ckpt_saved_prove_dict(const struct ckpt_saved *saved, struct fsdp_err *err);

/* saved_legacy.c */
int ckpt_saved_open_legacy(struct ckpt_saved *out, struct ckpt *ckpt, ckpt_archive_parse_f *parse,
                           struct fsdp_err *err);

#endif
