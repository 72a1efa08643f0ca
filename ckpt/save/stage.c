/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "source/source.h"
#include "stage.h"
#include "format/native/native.h"

void ckpt_stage_file(const char **path, uint64_t *nbytes, uint32_t *crc32c,
                     const struct ckpt_manifest *m, int i)
{
    const struct ckpt_layout *layout = &m->layout;
    if (i < layout->nfiles) {
        *path = layout->files[i].path;
        *nbytes = layout->files[i].nbytes;
        *crc32c = layout->files[i].crc32c;
    } else {
        const struct ckpt_extra *extra = &m->extras[i - layout->nfiles];
        *path = extra->path;
        *nbytes = extra->nbytes;
        *crc32c = extra->crc32c;
    }
}

static void clear(struct ckpt_stage *s)
{
    ckpt_manifest_free(&s->m);
    s->m = (struct ckpt_manifest){0};
    fsdp_free(s->reader);
    s->reader = NULL;
}

void ckpt_stage_close(struct ckpt_stage *s)
{
    clear(s);
    fsdp_free(s->folder);
    s->folder = NULL;
}

/* ---- which checkpoint ------------------------------------------------------------------------ */

/* This rank's manifest; *text stays NULL where it has none. */
static int read_manifest(char **text, size_t *nbytes, struct ckpt_stage *s, const char *staging,
                         int64_t step, struct fsdp_err *err)
{
    struct fsdp_err why = FSDP_ERR_INIT;
    FSDP_TRY(ckpt_store_of(&s->store, staging, err));
    s->folder = fsdp_sprintf(err, "%s/step-%08lld", staging, (long long)step);
    char *path = s->folder ? ckpt_path_join(s->folder, CKPT_MANIFEST_NAME, err) : NULL;
    if (!path)
        return FSDP_ENOMEM;
    int rc = ckpt_store_get(text, nbytes, s->store, path, CKPT_MAX_MANIFEST_NBYTES, &why);
    fsdp_free(path);
    return rc == FSDP_OK || rc == FSDP_ENOTFOUND ? FSDP_OK : fsdp_err_pass(err, rc, &why);
}

static bool sees(const struct ckpt_stage *s, int i)
{
    struct ckpt_store_stat st;
    const char *name;
    uint64_t nbytes;
    uint32_t crc32c;
    ckpt_stage_file(&name, &nbytes, &crc32c, &s->m, i);
    char *path = ckpt_path_join(s->folder, name, NULL);
    bool is = path && ckpt_store_stat(&st, s->store, path, NULL) == FSDP_OK && !st.is_folder &&
              st.nbytes == nbytes;
    fsdp_free(path);
    return is;
}

/* Of the ranks that see a file each takes its turn. */
static void choose_readers(struct ckpt_stage *s, const uint8_t *seen, int nranks)
{
    int nmissing = 0, first = -1;
    for (int i = 0; i < s->nfiles; i++) {
        int nseers = 0, turn;
        for (int r = 0; r < nranks; r++)
            nseers += seen[(size_t)r * (size_t)s->nfiles + (size_t)i];
        turn = nseers ? i % nseers : -1;
        s->reader[i] = -1;
        for (int r = 0; r < nranks && nseers; r++)
            if (seen[(size_t)r * (size_t)s->nfiles + (size_t)i] && turn-- == 0)
                s->reader[i] = r;
        first = nseers || first >= 0 ? first : i;
        nmissing += !nseers;
    }
    s->missing[0] = 0;
    if (nmissing) {
        const char *name;
        uint64_t nbytes;
        uint32_t crc32c;
        ckpt_stage_file(&name, &nbytes, &crc32c, &s->m, first);
        snprintf(s->missing, sizeof s->missing, "%d of its %d files are on no node, such as %s",
                 nmissing, s->nfiles, name);
    }
}

/* All ranks look at the manifest of one of them, text. */
static int look_at_manifest(struct ckpt_stage *s, const char *text, size_t nbytes, bool mine,
                            struct fsdp_oob *oob, struct fsdp_err *err)
{
    uint8_t *seen = NULL, *all = NULL;
    clear(s);
    int rc = ckpt_manifest_parse(&s->m, text, nbytes, s->folder, err);
    FSDP_TRY_GOTO(fsdp_oob_agree(oob, rc, err), out);
    s->nfiles = s->m.layout.nfiles + s->m.nextras;
    size_t nfiles = (size_t)s->nfiles;
    seen = fsdp_alloc(nfiles, 1, "staged files", err);
    all = fsdp_alloc(nfiles, (size_t)oob->size, "staged files", err);
    s->reader = fsdp_alloc(nfiles, sizeof *s->reader, "staged files", err);
    rc = seen && all && s->reader ? FSDP_OK : FSDP_ENOMEM;
    FSDP_TRY_GOTO(fsdp_oob_agree(oob, rc, err), out);
    for (int i = 0; i < s->nfiles; i++)
        seen[i] = mine && sees(s, i);
    FSDP_TRY_GOTO(oob->allgather(oob, seen, nfiles, all, err), out);
    choose_readers(s, all, oob->size);
out:
    fsdp_free(all);
    fsdp_free(seen);
    return rc;
}

/* Folders may hold different ones of that step: one that a lost node has no part of any more, and
 * the one that was made in its place. Each is looked at, until one is whole. */
static int look_at_each(struct ckpt_stage *s, const char *text, size_t nbytes, uint64_t *hashes,
                        size_t *lens, struct fsdp_oob *oob, struct fsdp_err *err)
{
    uint64_t mine = text ? fsdp_hash(FSDP_HASH_SEED, text, nbytes) | 1 : 0;
    int nseen = 0;
    FSDP_TRY(oob->allgather(oob, &mine, sizeof mine, hashes, err));
    for (int r = 0; r < oob->size; r++) {
        bool known = !hashes[r];
        void *told = NULL;
        for (int k = 0; k < r && !known; k++)
            known = hashes[k] == hashes[r];
        if (known)
            continue;
        nseen++;
        FSDP_TRY(fsdp_oob_allgatherv(oob, text, r == oob->rank ? nbytes : 0, &told, lens, err));
        int rc = look_at_manifest(s, told, lens[r], mine == hashes[r], oob, err);
        fsdp_free(told);
        FSDP_TRY(rc);
        if (!s->missing[0])
            return FSDP_OK;
    }
    return nseen ? FSDP_OK : fsdp_err_set(err, FSDP_ENOTFOUND, "'%s': not there", s->folder);
}

int ckpt_stage_open(struct ckpt_stage *s, const char *staging, int64_t step, struct fsdp_oob *oob,
                    struct fsdp_err *err)
{
    char *text = NULL;
    size_t nbytes = 0, nranks = (size_t)oob->size;
    uint64_t *hashes = fsdp_alloc(nranks, sizeof *hashes, "staging", err);
    size_t *lens = fsdp_alloc(nranks, sizeof *lens, "staging", err);

    *s = (struct ckpt_stage){0};
    int rc = hashes && lens ? read_manifest(&text, &nbytes, s, staging, step, err) : FSDP_ENOMEM;
    rc = fsdp_oob_agree(oob, rc, err);
    if (rc == FSDP_OK)
        rc = look_at_each(s, text, nbytes, hashes, lens, oob, err);
    fsdp_free(text);
    fsdp_free(lens);
    fsdp_free(hashes);
    return rc;
}

/* ---- which step ------------------------------------------------------------------------------ */

enum { MAX_STEPS = 16 }; /* that a folder can sensibly hold */

static int newest_first(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x > y ? -1 : x < y;
}

/* The steps in this rank's folder, newest first, -1 behind them. */
static int list_steps(int64_t steps[MAX_STEPS], const char *staging, struct fsdp_err *err)
{
    const struct ckpt_store_ops *store;
    struct ckpt_names names = {0};
    struct fsdp_err why = FSDP_ERR_INIT;
    int nsteps = 0;

    memset(steps, -1, MAX_STEPS * sizeof *steps);
    FSDP_TRY(ckpt_store_of(&store, staging, err));
    int rc = ckpt_store_names(&names, store, staging, &why);
    if (rc)
        return rc == FSDP_ENOTFOUND ? FSDP_OK : fsdp_err_pass(err, rc, &why);
    for (int i = names.nnames - 1; i >= 0 && nsteps < MAX_STEPS; i--)
        if (ckpt_step_of_name(names.names[i]) >= 0)
            steps[nsteps++] = ckpt_step_of_name(names.names[i]);
    ckpt_names_free(&names);
    return FSDP_OK;
}

struct search {
    const char *staging;
    int64_t after;
    ckpt_staged_f *report;
    void *report_ctx;
    struct fsdp_oob *oob;
};

/* Of the ranks' steps the newest that is whole. */
static int choose_step(int64_t *step, const struct search *s, const int64_t *steps, size_t nsteps,
                       struct fsdp_err *err)
{
    for (size_t i = 0; i < nsteps && steps[i] > s->after; i++) {
        struct ckpt_stage stage;
        if (i && steps[i] == steps[i - 1])
            continue;
        struct fsdp_err why = FSDP_ERR_INIT;
        int rc = ckpt_stage_open(&stage, s->staging, steps[i], s->oob, &why);
        bool whole = rc == FSDP_OK && !stage.missing[0];
        const char *fault = rc ? why.text : stage.missing;
        if (rc == FSDP_EPEER || rc == FSDP_ETIMEDOUT || rc == FSDP_ENOMEM)
            fsdp_err_pass(err, rc, &why);
        else
            rc = FSDP_OK;
        if (rc == FSDP_OK && !whole && s->report && s->oob->rank == 0)
            s->report(s->report_ctx, steps[i], fault);
        ckpt_stage_close(&stage);
        FSDP_TRY(rc);
        if (whole) {
            *step = steps[i];
            return FSDP_OK;
        }
    }
    return FSDP_OK;
}

int ckpt_staged_latest(int64_t *step, const char *staging, int64_t after, ckpt_staged_f *report,
                       void *report_ctx, struct fsdp_oob *oob, struct fsdp_err *err)
{
    const struct search search = {staging, after, report, report_ctx, oob};
    int64_t mine[MAX_STEPS];
    size_t nsteps = (size_t)oob->size * MAX_STEPS;
    int64_t *all = fsdp_alloc(nsteps, sizeof *all, "staged steps", err);

    *step = -1;
    int rc = fsdp_oob_agree(oob, all ? list_steps(mine, staging, err) : FSDP_ENOMEM, err);
    if (rc == FSDP_OK)
        rc = oob->allgather(oob, mine, sizeof mine, all, err);
    if (rc == FSDP_OK) {
        qsort(all, nsteps, sizeof *all, newest_first);
        rc = choose_step(step, &search, all, nsteps, err);
    }
    fsdp_free(all);
    return rc;
}
