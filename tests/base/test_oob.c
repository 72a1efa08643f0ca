/* SPDX-License-Identifier: Apache-2.0 */
/* What is built on a channel's allgather, over real processes; and tensors and boxes. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ranks.h"
#include "tap.h"

static int check(bool good, int rank, const char *what, const struct fsdp_err *err)
{
    if (!good)
        fprintf(stderr, "rank %d: %s: '%s'\n", rank, what, err->text);
    return !good;
}

static int collectives(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct fsdp_oob *dup;
    size_t lens[8];
    void *data = NULL;
    char mine[16], want[64] = "";
    int bad = 0, rank = oob->rank;
    (void)nodes;
    (void)arg;
    /* pieces of different length, one of them empty */
    for (int r = 0; r < oob->size; r++)
        for (int k = 0; k < r; k++)
            strcat(want, r == 1 ? "a" : r == 2 ? "b" : "c");
    memset(mine, rank == 1 ? 'a' : rank == 2 ? 'b' : 'c', sizeof mine);
    int rc = fsdp_oob_allgatherv(oob, mine, (size_t)rank, &data, lens, &err);
    bad += check(!rc && lens[0] == 0 && lens[2] == 2 && !memcmp(data, want, strlen(want)), rank,
                 "allgatherv", &err);
    fsdp_free(data);
    int value = rank * 10;
    rc = fsdp_oob_broadcast(oob, &value, sizeof value, 2, &err);
    bad += check(!rc && value == 20, rank, "broadcast", &err);
    rc = oob->dup(oob, "second", &dup, &err);
    value = rank;
    bad += check(!rc && !fsdp_oob_broadcast(dup, &value, sizeof value, 1, &err) && value == 1, rank,
                 "dup", &err);
    dup->close(dup);
    bad += check(fsdp_oob_agree(oob, FSDP_OK, &err) == FSDP_OK, rank, "agree on success", &err);
    rc = rank == 2 ? fsdp_err_set(&err, FSDP_ENOSPC, "disk full") : FSDP_OK;
    rc = fsdp_oob_agree(oob, rc, &err);
    bad += check(rc == FSDP_ENOSPC && err.of_other == (rank != 2) &&
                     !strcmp(err.text, rank == 2 ? "disk full" : "rank 2: disk full"),
                 rank, "agree on failure", &err);
    bad +=
        check(!fsdp_oob_agree_text(oob, "list", "a = 1\nb = 2\n", &err), rank, "equal text", &err);
    rc = fsdp_oob_agree_text(oob, "list",
                             rank >= 2 ? "a = 1\nb = 3\nc = 4\n" : "a = 1\nb = 2\nc = 4\n", &err);
    bad +=
        check(rc == FSDP_EMISMATCH &&
                  strstr(err.text,
                         "rank 2 has another list than rank 0: 'b = 3' where rank 0 has 'b = 2'"),
              rank, "differing text", &err);
    rc = fsdp_oob_agree_text(oob, "list", rank == 3 ? "a = 1\n" : "a = 1\nb = 2\n", &err);
    bad += check(
        rc == FSDP_EMISMATCH &&
            strstr(err.text, "rank 3 has another list than rank 0: '' where rank 0 has 'b = 2'"),
        rank, "missing line", &err);
    return bad;
}

static int dies(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    int value = 0, all[8];
    (void)nodes;
    (void)arg;
    if (oob->rank == 1)
        raise(SIGKILL);
    int rc = oob->allgather(oob, &value, sizeof value, all, &err);
    return check(rc == FSDP_EPEER && strstr(err.text, "rank 1"), oob->rank, "death", &err) +
           check(oob->health(oob, &err) == FSDP_EPEER, oob->rank, "health", &err);
}

static void test_tensors(void)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct fsdp_tensor huge = {"t", FSDP_F32, 3, {UINT64_C(1) << 40, 0, UINT64_C(1) << 40}};
    ok(fsdp_tensor_check(&huge, &err) == FSDP_EINVAL, "an overflow next to an empty dimension: %s",
       err.text);
    huge.ndim = 9;
    ok(fsdp_tensor_check(&huge, &err) == FSDP_EINVAL, "nine dimensions: %s", err.text);
    struct fsdp_box a = {{0, 2}, {4, 3}}, b = {{3, 0}, {5, 3}}, c = {{4, 0}, {1, 9}}, out;
    ok(fsdp_box_intersect(&out, &a, &b, 2) && out.offset[0] == 3 && out.length[0] == 1 &&
           out.offset[1] == 2 && out.length[1] == 1,
       "boxes that meet");
    ok(!fsdp_box_intersect(&out, &a, &c, 2) && out.length[0] == 0, "boxes that touch do not meet");
    ok(fsdp_box_intersect(&out, &a, &b, 0), "a scalar meets itself");
    enum fsdp_dtype dtype;
    ok(!fsdp_dtype_parse(&dtype, "bfloat16", &err) && dtype == FSDP_BF16 &&
           !fsdp_dtype_parse(&dtype, "f8_e4m3", &err) && dtype == FSDP_F8_E4M3 &&
           fsdp_dtype_parse(&dtype, "float12", &err) == FSDP_EINVAL,
       "dtype names: %s", err.text);
    int rc = fsdp_err_sys(&err, 28, "write '%s'", "f");
    ok(rc == FSDP_ENOSPC && !strcmp(err.text, "write 'f': No space left on device"),
       "errno becomes a status: %s", err.text);
}

int main(void)
{
    int status[4];
    ok(ranks_run(4, 2, 30, collectives, NULL, status) == 0,
       "collectives of the channel on 4 ranks");
    ok(ranks_run(3, 1, 30, dies, NULL, status) == 1 && WIFSIGNALED(status[1]),
       "a killed rank is named to the others");
    test_tensors();
    return tap_done();
}
