/* SPDX-License-Identifier: Apache-2.0 */
/* The out-of-band channel of one rank, and what can be built on any channel's allgather. */
#include <stdio.h>
#include <string.h>

#include "fsdp/base.h"

static int self_allgather(struct fsdp_oob *oob, const void *in, size_t nbytes, void *out,
                          struct fsdp_err *err)
{
    (void)oob;
    (void)err;
    if (nbytes && in != out)
        memmove(out, in, nbytes);
    return FSDP_OK;
}

static int self_dup(struct fsdp_oob *oob, const char *tag, struct fsdp_oob **out,
                    struct fsdp_err *err)
{
    (void)oob;
    (void)tag;
    return fsdp_oob_self_create(out, err);
}

static int self_health(struct fsdp_oob *oob, struct fsdp_err *err)
{
    (void)oob;
    (void)err;
    return FSDP_OK;
}

static void self_abort(struct fsdp_oob *oob, int code, const struct fsdp_err *why)
{
    (void)oob;
    (void)code;
    (void)why;
}

static void self_close(struct fsdp_oob *oob)
{
    fsdp_free(oob);
}

int fsdp_oob_self_create(struct fsdp_oob **out, struct fsdp_err *err)
{
    struct fsdp_oob *oob = fsdp_alloc(1, sizeof *oob, "oob self", err);
    if (!oob)
        return FSDP_ENOMEM;
    *oob = (struct fsdp_oob){
        .abi = FSDP_OOB_ABI,
        .size = 1,
        .allgather = self_allgather,
        .dup = self_dup,
        .health = self_health,
        .abort = self_abort,
        .close = self_close,
    };
    *out = oob;
    return FSDP_OK;
}

/* Ranks agree before each exchange that all have the memory for it: one that returned early would
 * leave the others in an exchange that never ends. */
int fsdp_oob_allgatherv(struct fsdp_oob *oob, const void *in, size_t nbytes, void **out,
                        size_t *lens, struct fsdp_err *err)
{
    size_t size = (size_t)oob->size, most = 0, total = 0;
    uint64_t mine = nbytes;
    char *padded = NULL, *all = NULL, *packed = NULL;
    uint64_t *all_lens = fsdp_alloc(size, sizeof *all_lens, "oob lengths", err);
    int rc = fsdp_oob_agree(oob, all_lens ? FSDP_OK : FSDP_ENOMEM, err);

    if (rc)
        goto out;
    FSDP_TRY_GOTO(oob->allgather(oob, &mine, sizeof mine, all_lens, err), out);
    for (size_t r = 0; r < size; r++) {
        most = all_lens[r] > most ? all_lens[r] : most;
        total += all_lens[r];
    }
    bool room = (padded = fsdp_alloc(most, 1, "oob piece", err)) &&
                (all = fsdp_alloc(most, size, "oob pieces", err)) &&
                (packed = fsdp_alloc(total, 1, "oob data", err));
    FSDP_TRY_GOTO(fsdp_oob_agree(oob, room ? FSDP_OK : FSDP_ENOMEM, err), out);
    if (nbytes)
        memcpy(padded, in, nbytes);
    FSDP_TRY_GOTO(oob->allgather(oob, padded, most, all, err), out);
    size_t pos = 0;
    for (size_t r = 0; r < size; r++) {
        lens[r] = all_lens[r];
        memcpy(packed + pos, all + r * most, lens[r]);
        pos += lens[r];
    }
    *out = packed;
    packed = NULL;
out:
    fsdp_free(packed);
    fsdp_free(all);
    fsdp_free(padded);
    fsdp_free(all_lens);
    return rc;
}

int fsdp_oob_agree(struct fsdp_oob *oob, int status, struct fsdp_err *err)
{
    enum { FEW = 4096 }; /* on the stack: a rank that is out of memory must still say so */
    int32_t mine = status, few[FEW], *all = few;
    struct fsdp_err first = FSDP_ERR_INIT;
    int rc, rank = -1;

    if (oob->size > FEW && !(all = fsdp_alloc((size_t)oob->size, sizeof *all, "oob status", err)))
        return FSDP_ENOMEM;
    FSDP_TRY_GOTO(oob->allgather(oob, &mine, sizeof mine, all, err), out);
    for (int r = 0; r < oob->size && rank < 0; r++)
        if (all[r] != FSDP_OK)
            rank = r;
    if (rank < 0)
        goto out;
    if (rank == oob->rank && err)
        first = *err;
    first.status = all[rank];
    FSDP_TRY_GOTO(fsdp_oob_broadcast(oob, &first, sizeof first, rank, err), out);
    first.text[sizeof first.text - 1] = 0;
    rc = first.status;
    first.setting[sizeof first.setting - 1] = 0;
    if (rank != oob->rank && err) {
        *err = first;
        fsdp_err_of_rank(err, rc, rank);
    }
out:
    if (all != few)
        fsdp_free(all);
    return rc;
}

/* First line in which a and b differ; the pieces are not terminated. */
static void differing_line(const char **a, int *a_len, const char **b, int *b_len,
                           const char *a_end, const char *b_end)
{
    for (;;) {
        const char *a_nl = memchr(*a, '\n', (size_t)(a_end - *a));
        const char *b_nl = memchr(*b, '\n', (size_t)(b_end - *b));
        *a_len = (int)((a_nl ? a_nl : a_end) - *a);
        *b_len = (int)((b_nl ? b_nl : b_end) - *b);
        if (*a_len != *b_len || memcmp(*a, *b, (size_t)*a_len) || !a_nl || !b_nl)
            return;
        *a = a_nl + 1;
        *b = b_nl + 1;
    }
}

int fsdp_oob_agree_text(struct fsdp_oob *oob, const char *what, const char *text,
                        struct fsdp_err *err)
{
    enum { LINE = 300 }; /* bytes of a line in the error */
    size_t nbytes = strlen(text), size = (size_t)oob->size, pos;
    uint64_t mine[2] = {nbytes, fsdp_hash(FSDP_HASH_SEED, text, nbytes)};
    uint64_t(*all)[2] = fsdp_alloc(size, sizeof *all, "agreement", err);
    size_t *lens = fsdp_alloc(size, sizeof *lens, "agreement", err);
    void *texts = NULL;
    int differs = 0, rc = fsdp_oob_agree(oob, all && lens ? FSDP_OK : FSDP_ENOMEM, err);

    if (rc)
        goto out;
    FSDP_TRY_GOTO(oob->allgather(oob, mine, sizeof mine, all, err), out);
    for (size_t r = 1; r < size && !differs; r++)
        if (memcmp(all[r], all[0], sizeof all[0]))
            differs = (int)r;
    if (!differs)
        goto out;
    FSDP_TRY_GOTO(fsdp_oob_allgatherv(oob, text, nbytes, &texts, lens, err), out);
    pos = 0;
    for (int r = 0; r < differs; r++)
        pos += lens[r];
    const char *a = texts, *b = a + pos;
    int a_len, b_len;
    differing_line(&a, &a_len, &b, &b_len, a + lens[0], b + lens[differs]);
    rc =
        fsdp_err_set(err, FSDP_EMISMATCH,
                     "rank %d has another %s than rank 0: '%.*s' where rank 0 has '%.*s'; all "
                     "ranks need the same",
                     differs, what, b_len < LINE ? b_len : LINE, b, a_len < LINE ? a_len : LINE, a);
out:
    fsdp_free(texts);
    fsdp_free(lens);
    fsdp_free(all);
    return rc;
}

int fsdp_oob_broadcast(struct fsdp_oob *oob, void *data, size_t nbytes, int root,
                       struct fsdp_err *err)
{
    char *all = fsdp_alloc((size_t)oob->size, nbytes, "oob broadcast", err);
    if (!all)
        return FSDP_ENOMEM;
    int rc = oob->allgather(oob, data, nbytes, all, err);
    if (rc == FSDP_OK && nbytes)
        memcpy(data, all + (size_t)root * nbytes, nbytes);
    fsdp_free(all);
    return rc;
}
