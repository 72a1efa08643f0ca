/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The journal of a long write: which ranges of which output files are written, and what their bytes
 * were. It is a hint, not a promise: a range is trusted after its bytes were read again and have
 * the checksum that the journal gives. So nothing needs to be synced in between, and a torn or
 * stale record costs only time.
 */
#ifndef CKPT_JOURNAL_H
#define CKPT_JOURNAL_H

#include "store/store.h"

enum { CKPT_JOURNAL_MAX_PARTS = 64 };

/* A written range of a file, and what its parts added to the fingerprints of what was read. */
struct ckpt_journal_record {
    uint32_t file, crc32c;
    uint64_t pos, nbytes;
    uint32_t nparts;
    uint64_t parts[CKPT_JOURNAL_MAX_PARTS];
};
/* As pos: the whole file is done; nbytes and crc32c are those of the file on disk. */
#define CKPT_JOURNAL_WHOLE UINT64_MAX

struct ckpt_journal {
    struct ckpt_store_file *file; /* NULL: there is none, nothing is recorded */
    uint64_t end;                 /* where the next record goes */
    bool published;               /* an earlier run had begun to publish */
    char *data;                   /* records of earlier runs */
    size_t nrecords;
    struct ckpt_journal_entry {
        uint32_t file;
        uint64_t pos, at; /* at: of the record in data */
    } * entries;          /* sorted */
};

/* Opens or makes the journal at path for the job `key`; FSDP_EEXIST if another process has it open.
 * What is not this job's, or damaged, is ignored. */
int ckpt_journal_open(struct ckpt_journal *out, const struct ckpt_store_ops *ops, const char *path,
                      uint64_t key, struct fsdp_err *err);
/* Is there a record of the range that begins at pos? Thread safe. */
bool ckpt_journal_find(struct ckpt_journal_record *out, const struct ckpt_journal *journal,
                       uint32_t file, uint64_t pos);
/* One caller at a time. */
int ckpt_journal_add(struct ckpt_journal *journal, const struct ckpt_journal_record *record,
                     struct fsdp_err *err);
/* From here on the final name may be the output's. Durable. */
int ckpt_journal_add_published(struct ckpt_journal *journal, struct fsdp_err *err);
void ckpt_journal_close(struct ckpt_journal *journal);

#endif
