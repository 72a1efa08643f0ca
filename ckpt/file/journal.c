/* SPDX-License-Identifier: Apache-2.0 */
/*
 * In the file: a head (magic, key), then records
 *
 *   u32 file | u32 crc32c of the range | u64 pos | u64 nbytes | u32 nparts | u32 check |
 *   u64 parts[nparts]
 *
 * in the machine's byte order. `check` is the CRC-32C of the record with check = 0. A record for
 * file PUBLISHED says that publishing has begun.
 */
#include <stdlib.h>
#include <string.h>

#include "ckpt/ckpt.h"
#include "journal.h"

enum { MAX_JOURNAL_NBYTES = 1 << 28 };
#define PUBLISHED UINT32_MAX

struct head {
    char magic[8];
    uint64_t key;
};

struct fixed {
    uint32_t file, crc32c;
    uint64_t pos, nbytes;
    uint32_t nparts, check;
};

static uint32_t check_of(struct fixed fixed, const void *parts)
{
    fixed.check = 0;
    uint32_t crc = ckpt_crc32c(0, &fixed, sizeof fixed);
    return ckpt_crc32c(crc, parts, fixed.nparts * sizeof(uint64_t));
}

static int compare_entries(const void *a, const void *b)
{
    const struct ckpt_journal_entry *x = a, *y = b;
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    if (x->pos != y->pos)
        return x->pos < y->pos ? -1 : 1;
    return x->at < y->at ? -1 : x->at > y->at;
}

/* The record at data + at; false where there is no whole and sound one. */
static bool parse_record(struct fixed *out, size_t *nbytes, const char *data, size_t size,
                         size_t at)
{
    if (size - at < sizeof *out)
        return false;
    memcpy(out, data + at, sizeof *out);
    if (out->nparts > CKPT_JOURNAL_MAX_PARTS)
        return false;
    *nbytes = sizeof *out + out->nparts * sizeof(uint64_t);
    return size - at >= *nbytes && check_of(*out, data + at + sizeof *out) == out->check;
}

/* Records up to the first that is not sound: what a killed run left behind it is written again. */
static int parse_records(struct ckpt_journal *j, size_t size, struct fsdp_err *err)
{
    struct fixed fixed;
    size_t nbytes, count = 0;

    for (size_t at = sizeof(struct head); parse_record(&fixed, &nbytes, j->data, size, at);
         at += nbytes)
        count++;
    if (!(j->entries = fsdp_alloc(count, sizeof *j->entries, "journal", err)))
        return FSDP_ENOMEM;
    j->end = sizeof(struct head);
    while (parse_record(&fixed, &nbytes, j->data, size, j->end)) {
        if (fixed.file == PUBLISHED)
            j->published = true;
        else
            j->entries[j->nrecords++] = (struct ckpt_journal_entry){fixed.file, fixed.pos, j->end};
        j->end += nbytes;
    }
    if (j->nrecords)
        qsort(j->entries, j->nrecords, sizeof *j->entries, compare_entries);
    return FSDP_OK;
}

int ckpt_journal_open(struct ckpt_journal *out, const struct ckpt_store_ops *ops, const char *path,
                      uint64_t key, struct fsdp_err *err)
{
    struct head head = {.magic = "ckptjob1", .key = key};
    struct ckpt_store_stat st;
    size_t nbytes = 0;

    memset(out, 0, sizeof *out);
    int rc = ckpt_store_open(&out->file, ops, path, CKPT_STORE_RESUME, err);
    if (rc == FSDP_EUNSUPPORTED) {
        out->file = NULL;
        return FSDP_OK;
    }
    FSDP_TRY(rc);
    rc = ckpt_store_stat(&st, ops, path, err);
    if (rc == FSDP_OK && st.nbytes > sizeof head && st.nbytes <= MAX_JOURNAL_NBYTES)
        rc = ckpt_store_get(&out->data, &nbytes, ops, path, MAX_JOURNAL_NBYTES, err);
    if (rc == FSDP_OK && nbytes > sizeof head && !memcmp(out->data, &head, sizeof head))
        rc = parse_records(out, nbytes, err);
    if (rc == FSDP_OK && !out->end) {
        out->end = sizeof head;
        rc = ckpt_store_pwrite(out->file, &head, sizeof head, 0, err);
    }
    if (rc)
        ckpt_journal_close(out);
    return rc;
}

bool ckpt_journal_find(struct ckpt_journal_record *out, const struct ckpt_journal *j, uint32_t file,
                       uint64_t pos)
{
    size_t low = 0, high = j->nrecords;
    while (low < high) { /* the last one of this range: the others are older */
        size_t mid = low + (high - low) / 2;
        const struct ckpt_journal_entry *entry = &j->entries[mid];
        if (entry->file < file || (entry->file == file && entry->pos <= pos))
            low = mid + 1;
        else
            high = mid;
    }
    if (!low || j->entries[low - 1].file != file || j->entries[low - 1].pos != pos)
        return false;
    struct fixed fixed;
    const char *at = j->data + j->entries[low - 1].at;
    memcpy(&fixed, at, sizeof fixed);
    *out = (struct ckpt_journal_record){.file = file,
                                        .crc32c = fixed.crc32c,
                                        .pos = pos,
                                        .nbytes = fixed.nbytes,
                                        .nparts = fixed.nparts};
    memcpy(out->parts, at + sizeof fixed, fixed.nparts * sizeof(uint64_t));
    return true;
}

int ckpt_journal_add(struct ckpt_journal *j, const struct ckpt_journal_record *record,
                     struct fsdp_err *err)
{
    char text[sizeof(struct fixed) + sizeof record->parts];
    struct fixed fixed = {.file = record->file,
                          .crc32c = record->crc32c,
                          .pos = record->pos,
                          .nbytes = record->nbytes,
                          .nparts = record->nparts};
    size_t nbytes = sizeof fixed + record->nparts * sizeof(uint64_t);

    if (!j->file)
        return FSDP_OK;
    fixed.check = check_of(fixed, record->parts);
    memcpy(text, &fixed, sizeof fixed);
    memcpy(text + sizeof fixed, record->parts, record->nparts * sizeof(uint64_t));
    FSDP_TRY(ckpt_store_pwrite(j->file, text, nbytes, j->end, err));
    j->end += nbytes;
    return FSDP_OK;
}

int ckpt_journal_add_published(struct ckpt_journal *j, struct fsdp_err *err)
{
    struct ckpt_journal_record record = {.file = PUBLISHED};
    FSDP_TRY(ckpt_journal_add(j, &record, err));
    return j->file ? ckpt_store_sync(j->file, err) : FSDP_OK;
}

void ckpt_journal_close(struct ckpt_journal *j)
{
    ckpt_store_close(j->file, NULL);
    fsdp_free(j->data);
    fsdp_free(j->entries);
    memset(j, 0, sizeof *j);
}
