/* SPDX-License-Identifier: Apache-2.0 */
/* The control channel: collectives on every tree shape, channels side by side, and every way in
 * which a rank can be lost, late or gone. */
#include <arpa/inet.h>
#include <pthread.h>
#include <sys/socket.h>

#include "../../launcher/channel/tree.h"
#include "job.h"
#include "why.h"

/* ---- it works ---- */

static unsigned char byte_of(int rank, size_t i, int round)
{
    return (unsigned char)(rank * 31 + (int)(i % 251) + round * 7);
}

static bool gather_ok(struct fsdp_oob *oob, size_t nbytes, int round)
{
    unsigned char *in = malloc(nbytes + 1), *out = malloc(nbytes * (size_t)oob->size + 1);
    struct fsdp_err err = FSDP_ERR_INIT;
    bool good = true;
    for (size_t i = 0; i < nbytes; i++)
        in[i] = byte_of(oob->rank, i, round);
    if (oob->allgather(oob, in, nbytes, out, &err)) {
        diag("rank %d: %s", oob->rank, err.text);
        good = false;
    }
    for (int r = 0; r < oob->size && good; r++)
        for (size_t i = 0; i < nbytes; i++)
            good &= out[(size_t)r * nbytes + i] == byte_of(r, i, round);
    free(in);
    free(out);
    return good;
}

static bool info_ok(struct job *job, int rank, struct boot *boot)
{
    const struct boot_info *info = boot_info(boot);
    const struct fsdp_node_map *nodes = boot_nodes(boot);
    int local_rank = 0, local_size = 0;
    bool good = nodes->nranks == job->nranks && nodes->nnodes == job->nnodes;
    for (int r = 0; r < job->nranks; r++) {
        char host[32];
        snprintf(host, sizeof host, "box/node%d", job_node(job, r));
        good &= nodes->node_of[r] == job_node(job, r) && strcmp(nodes->host[r], host) == 0;
        local_rank += r < rank && job_node(job, r) == job_node(job, rank);
        local_size += job_node(job, r) == job_node(job, rank);
    }
    return good && info->rank == rank && info->size == job->nranks &&
           info->node == job_node(job, rank) && info->nnodes == job->nnodes &&
           info->local_rank == local_rank && info->local_size == local_size &&
           strcmp(info->job, "test-job") == 0 && strcmp(info->method, "local") == 0;
}

static int main_works(struct job *job, int rank, struct boot *boot)
{
    static const size_t sizes[] = {0, 1, 7, 4096, 300001};
    if (!boot) {
        diag("%s", job->seen[rank].err.text);
        return 2;
    }
    struct fsdp_oob *oob = boot_oob(boot);
    bool good = info_ok(job, rank, boot) && oob->rank == rank && oob->size == job->nranks;
    for (int round = 0; round < 20; round++)
        good &= gather_ok(oob, sizes[round % 5], round);
    good &= oob->health(oob, NULL) == FSDP_OK;
    boot_close(boot);
    return !good;
}

static void check_works(int nranks, int nnodes, bool cyclic)
{
    struct job job = JOB_INIT;
    bool good;
    job.nranks = nranks;
    job.nnodes = nnodes;
    job.cyclic = cyclic;
    good = job_run(&job, main_works);
    for (int r = 0; r < nranks; r++)
        good &= job.status[r] == 0;
    ok(good, "%d ranks on %d nodes%s meet and gather", nranks, nnodes, cyclic ? " in turn" : "");
    job_free(&job);
}

/* ---- ranks dealt out in turn, renumbered ---- */

/* Rank `rank` was started on node rank % nnodes, as the rank / nnodes-th there. */
static int main_reordered(struct job *job, int rank, struct boot *boot)
{
    int node = rank % job->nnodes, first = 0, last = -1;
    char host[32];
    if (!boot)
        return 2;
    const struct boot_info *info = boot_info(boot);
    const struct fsdp_node_map *nodes = boot_nodes(boot);
    for (int n = 0; n < node; n++)
        first += (job->nranks - n + job->nnodes - 1) / job->nnodes;
    snprintf(host, sizeof host, "box/node%d", node);
    bool good = info->rank == first + rank / job->nnodes && info->node == node &&
                info->local_rank == rank / job->nnodes && boot_oob(boot)->rank == info->rank &&
                strcmp(nodes->host[info->rank], host) == 0;
    for (int r = 0; r < job->nranks; r++) {
        good &= nodes->node_of[r] >= last;
        last = nodes->node_of[r];
    }
    for (int round = 0; round < 5; round++)
        good &= gather_ok(boot_oob(boot), 4096, round);
    boot_close(boot);
    return !good;
}

static void check_reordered(int nranks, int nnodes)
{
    struct job job = JOB_INIT;
    job.nranks = nranks;
    job.nnodes = nnodes;
    job.cyclic = job.reorder = true;
    bool good = job_run(&job, main_reordered);
    for (int r = 0; r < nranks; r++)
        good &= job.status[r] == 0;
    ok(good, "%d ranks on %d nodes in turn get new numbers, a node's in a row", nranks, nnodes);
    job_free(&job);
}

/* ---- channels side by side ---- */

struct user {
    struct fsdp_oob *oob;
    int rounds, pause_us;
    size_t nbytes;
    bool good;
};

static void *use_channel(void *arg)
{
    struct user *user = arg;
    user->good = true;
    for (int i = 0; i < user->rounds; i++) {
        user->good &= gather_ok(user->oob, user->nbytes, i);
        if (user->pause_us && i % 8 == user->oob->rank)
            usleep((useconds_t)user->pause_us);
    }
    return NULL;
}

static int main_dups(struct job *job, int rank, struct boot *boot)
{
    (void)job;
    struct fsdp_oob *oob = boot_oob(boot), *a, *b, *deep;
    struct fsdp_err err = FSDP_ERR_INIT;
    pthread_t threads[3];
    if (oob->dup(oob, "alpha", &a, &err) || oob->dup(oob, "beta", &b, &err) ||
        a->dup(a, "alpha", &deep, &err)) {
        diag("%s", err.text);
        return 2;
    }
    struct user users[3] = {
        {a, 150, 0, 100, false}, {b, 60, 500, 20000, false}, {deep, 100, 0, 3, false}};
    /* Different threads start in different order on different ranks. */
    for (int i = 0; i < 3; i++)
        pthread_create(&threads[i], NULL, use_channel, &users[(i + rank) % 3]);
    bool good = gather_ok(oob, 10, 1);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    good &= users[0].good && users[1].good && users[2].good;
    deep->close(deep);
    a->close(a);
    boot_close(boot);
    good &= b->allgather(b, NULL, 0, NULL, &err) == FSDP_EPEER; /* outlives the boot, fails */
    good &= b->health(b, NULL) == FSDP_OK;
    b->close(b);
    return !good;
}

static int main_misuse(struct job *job, int rank, struct boot *boot)
{
    struct fsdp_oob *oob = boot_oob(boot), *out = NULL, *sized = NULL;
    struct fsdp_err err = FSDP_ERR_INIT;
    char buf[64];
    bool good = oob->dup(oob, "", &out, &err) == FSDP_EINVAL;
    good &= oob->dup(oob, "a tag of more than thirty-one characters", &out, &err) == FSDP_EINVAL;
    good &= oob->allgather(oob, buf, (size_t)1 << 40, buf, &err) == FSDP_EINVAL;
    good &= oob->dup(oob, rank == 2 ? "one" : "other", &out, &err) == FSDP_EMISMATCH &&
            strstr(err.text, "rank 2 'one'");
    good &= oob->dup(oob, "sized", &sized, &err) == FSDP_OK;
    job->seen[rank].status = sized->allgather(sized, buf, rank == 3 ? 8 : 4, buf, &err);
    job->seen[rank].err = err;
    good &= sized->allgather(sized, buf, 4, buf, &err) == FSDP_EMISMATCH; /* sticky */
    good &= gather_ok(oob, 5, 3); /* other channels continue */
    good &= oob->health(oob, NULL) == FSDP_OK;
    sized->close(sized);
    boot_close(boot);
    return !good;
}

static void check_channels(void)
{
    struct job job = JOB_INIT;
    bool good = job_run(&job, main_dups);
    for (int r = 0; r < 4; r++)
        good &= job.status[r] == 0;
    ok(good, "four channels in three threads keep their own order");
    job_free(&job);

    good = job_run(&job, main_misuse);
    for (int r = 0; r < 4; r++) {
        good &= job.status[r] == 0 && job.seen[r].status == FSDP_EMISMATCH;
        good &= strstr(job.seen[r].err.text, "rank 3 on box/node1") != NULL;
    }
    ok(good, "different sizes and tags are named and stick to their channel: %s",
       job.seen[0].err.text);
    job_free(&job);
}

/* ---- losses ---- */

static int victim; /* inherited by the ranks */
static bool with_words;

static int main_loss(struct job *job, int rank, struct boot *boot)
{
    struct job_seen *seen = &job->seen[rank];
    struct fsdp_oob *oob = boot_oob(boot), *other;
    if (oob->dup(oob, "other", &other, NULL) || !gather_ok(oob, 100, 0))
        return 2;
    if (rank == victim && with_words) {
        oob->abort(oob, 9, why_of(rank, "the disk is on fire"));
        usleep(100000); /* the others leave meanwhile */
        seen->status = other->allgather(other, NULL, 0, NULL, &seen->err);
    } else if (rank == victim) {
        raise(SIGKILL);
    }
    while (seen->status == FSDP_OK)
        seen->status = other->allgather(other, NULL, 0, NULL, &seen->err);
    seen->health = oob->health(oob, &seen->health_err);
    other->close(other);
    boot_close(boot);
    return 0;
}

static void check_loss(int nranks, int nnodes, int who, bool words, const char *what)
{
    struct job job = JOB_INIT;
    char name[64], reason[FSDP_ERR_TEXT_NBYTES];
    job.nranks = nranks;
    job.nnodes = nnodes;
    victim = who;
    with_words = words;
    snprintf(name, sizeof name, "rank %d on box/node%d %s", who, job_node(&job, who),
             words ? "gave up (code 9): the disk is on fire" : "is lost");
    bool good = job_run(&job, main_loss);
    for (int r = 0; r < nranks; r++) {
        if (r == who && !words) {
            good &= WIFSIGNALED(job.status[r]);
            continue;
        }
        good &= job.status[r] == 0 && job.seen[r].status == FSDP_EPEER &&
                strstr(job.seen[r].err.text, name) && job.seen[r].health == FSDP_EPEER &&
                strstr(job.seen[r].health_err.text, name) && job.seen[r].health_err.rank == who &&
                job.seen[r].health_err.kind == (words ? FSDP_ERR_GAVE_UP : FSDP_ERR_LOST) &&
                job.seen[r].health_err.culprit == who && job.seen[r].err.culprit == who &&
                job.seen[r].err.of_other == words;
        if (words)
            good &= !strcmp(fsdp_err_reason(reason, &job.seen[r].err), "the disk is on fire");
        if (!good)
            diag("rank %d: %d %s", r, job.seen[r].status, job.seen[r].err.text);
    }
    ok(good, "%s: everybody names it", what);
    if (words)
        ok(strcmp(job.words[who], "the disk is on fire") == 0, "%s: so does the rendezvous", what);
    job_free(&job);
}

/* ---- late, absent, unknown ---- */

static int main_late(struct job *job, int rank, struct boot *boot)
{
    struct job_seen *seen = &job->seen[rank];
    struct fsdp_oob *oob = boot_oob(boot), *slow, *sync;
    if (oob->dup(oob, "slow", &slow, NULL) || oob->dup(oob, "sync", &sync, NULL))
        return 2;
    if (rank != 1)
        seen->status = slow->allgather(slow, NULL, 0, NULL, &seen->err);
    bool good = rank == 1 || slow->allgather(slow, NULL, 0, NULL, NULL) == seen->status;
    while (rank == 1 && sync->health(sync, NULL) == FSDP_OK)
        usleep(10000); /* ends when the others give up */
    if (rank != 1)
        sync->abort(sync, 1, why("waited in vain"));
    slow->close(slow);
    sync->close(sync);
    boot_close(boot);
    return !good;
}

static int main_nothing(struct job *job, int rank, struct boot *boot)
{
    (void)job;
    (void)rank;
    boot_close(boot);
    return boot ? 1 : 0;
}

static void check_late(void)
{
    struct job job = JOB_INIT;
    char reason[FSDP_ERR_TEXT_NBYTES];
    job.wait_s = 3;
    bool good = job_run(&job, main_late);
    int ntold = 0;
    for (int r = 0; r < 4; r++) {
        good &= job.status[r] == 0;
        ntold += job.seen[r].status == FSDP_ETIMEDOUT &&
                 !strcmp(fsdp_err_reason(reason, &job.seen[r].err), "rank 1 on box/node0") &&
                 job.seen[r].err.culprit == 1;
        /* who waits a moment longer hears of the others' giving up */
        good &= r == 1 || job.seen[r].status == FSDP_ETIMEDOUT || job.seen[r].status == FSDP_EPEER;
    }
    ok(good && ntold >= 1, "a late rank is named at the deadline (by %d ranks)", ntold);
    job_free(&job);
}

static void check_bootstrap_failure(int absent, int stranger, const char *name)
{
    struct job job = JOB_INIT;
    int who = absent >= 0 ? absent : stranger;
    job.timeout_s = 5;
    job.absent = absent;
    job.stranger = stranger;
    bool good = job_run(&job, main_nothing);
    for (int r = 0; r < 4; r++) {
        if (r == who)
            continue;
        good &= job.status[r] == 0 && job.seen[r].status == FSDP_ETIMEDOUT &&
                strstr(job.seen[r].err.text, name);
        if (!good)
            diag("rank %d: %d %s", r, job.seen[r].status, job.seen[r].err.text);
    }
    if (stranger >= 0)
        good &= job.seen[who].status == FSDP_EMISMATCH && strstr(job.seen[who].err.text, "secret");
    ok(good, "%s: %s", absent >= 0 ? "a rank that never comes" : "a rank with another secret",
       job.seen[who ? 0 : 1].err.text);
    job_free(&job);
}

static void check_silent_strangers(void)
{
    struct job job = JOB_INIT;
    job.nsilent = 200;
    bool good = job_run(&job, main_works);
    for (int r = 0; r < 4; r++)
        good &= job.status[r] == 0;
    ok(good, "200 connections that say nothing hold up nobody");
    job_free(&job);
}

/* The rank came to the rendezvous but not to the tree. */
static void check_absent_in_tree(void)
{
    enum { NRANKS = 4, ABSENT = 3 };
    int node_of[NRANKS] = {0, 0, 1, 1}, status, good = 0;
    struct boot_contact contacts[NRANKS];
    struct boot_acceptor *acceptors[NRANKS];
    struct boot_secret secret = {{1}};
    struct fsdp_node_map nodes = {NRANKS, 2, node_of, NULL, FSDP_STARTED_HERE};
    pid_t pids[NRANKS];

    for (int r = 0; r < NRANKS; r++) {
        boot_acceptor_create(&acceptors[r], &secret, true, 0, NULL);
        boot_acceptor_contact(acceptors[r], &contacts[r]);
    }
    fflush(NULL);
    for (int r = 0; r < NRANKS; r++) {
        pids[r] = r == ABSENT ? 0 : fork();
        if (pids[r] || r == ABSENT)
            continue;
        struct boot_tree_opts opts = {
            .rank = r, .nodes = &nodes, .contacts = contacts, .secret = secret, .wait_s = 10};
        struct boot_tree *tree;
        struct fsdp_err err = FSDP_ERR_INIT;
        int rc = boot_tree_create(&tree, &opts, acceptors[r], fsdp_time_now() + 5, &err);
        if (!strstr(err.text, "rank 3"))
            diag("rank %d: %s", r, err.text);
        _exit(!((rc == FSDP_ETIMEDOUT || rc == FSDP_EPEER) && strstr(err.text, "rank 3")));
    }
    for (int r = 0; r < NRANKS; r++) {
        boot_acceptor_destroy(acceptors[r]);
        if (r != ABSENT && waitpid(pids[r], &status, 0) == pids[r])
            good += status == 0;
    }
    ok(good == NRANKS - 1, "a rank that does not come to the tree is named by all others");
}

/* ---- goodbyes ---- */

static int leaver;

static int main_leave(struct job *job, int rank, struct boot *boot)
{
    struct job_seen *seen = &job->seen[rank];
    struct fsdp_oob *oob = boot_oob(boot);
    if (!gather_ok(oob, 10, 0))
        return 2;
    if (rank == leaver) {
        boot_close(boot);
        return 0;
    }
    seen->status = oob->allgather(oob, NULL, 0, NULL, &seen->err);
    seen->health = oob->health(oob, &seen->health_err);
    /* What comes after still gets through: the words of one of those that stayed. */
    if (leaver != 0 && rank == 3)
        oob->abort(oob, 7, why("after all"));
    while (leaver != 0 && oob->health(oob, &seen->health_err) == FSDP_OK)
        usleep(1000);
    boot_close(boot);
    return 0;
}

static void check_leave(int who, const char *what)
{
    struct job job = JOB_INIT;
    leaver = who;
    bool good = job_run(&job, main_leave);
    for (int r = 0; r < 4; r++) {
        char name[32];
        snprintf(name, sizeof name, "rank %d on box", who);
        good &= job.status[r] == 0;
        if (r == who)
            continue;
        /* a rank may hear rank 3's words before it has looked at its own call */
        bool left = job.seen[r].status == FSDP_EPEER && strstr(job.seen[r].err.text, name) &&
                    strstr(job.seen[r].err.text, "has left");
        bool words = strstr(job.seen[r].err.text, "after all") != NULL;
        good &= left || (who != 0 && words);
        good &= who == 0 ? job.seen[r].health == FSDP_OK
                         : strstr(job.seen[r].health_err.text, "after all") != NULL;
        if (!good)
            diag("rank %d: %s; %s", r, job.seen[r].err.text, job.seen[r].health_err.text);
    }
    ok(good, "%s that leaves in order is no death, and is named by who still needs it", what);
    job_free(&job);
}

int main(void)
{
    static const int shapes[][3] = {{1, 1, 0}, {2, 1, 0}, {2, 2, 0}, {3, 1, 0}, {4, 2, 0},
                                    {5, 2, 0}, {6, 3, 1}, {7, 7, 0}, {8, 1, 0}, {8, 3, 1}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        check_works(shapes[i][0], shapes[i][1], shapes[i][2]);
    check_reordered(6, 3);
    check_reordered(7, 2);
    check_channels();
    check_loss(2, 1, 1, false, "death of the only other rank");
    check_loss(5, 2, 1, false, "death of a leaf below the root");
    check_loss(6, 3, 5, false, "death of a leaf below a leader");
    check_loss(6, 2, 3, false, "death of a leader");
    check_loss(6, 2, 0, false, "death of the root");
    check_loss(6, 2, 5, true, "last words of a leaf");
    check_loss(6, 2, 3, true, "last words of a leader");
    check_loss(6, 2, 0, true, "last words of the root");
    check_late();
    check_bootstrap_failure(2, -1, "rank 2 on box/node1 (never connected)");
    check_bootstrap_failure(0, -1, "rank 0 on box/node0 (never connected)");
    check_bootstrap_failure(-1, 1, "rank 1 on box/node0 (never connected)");
    check_silent_strangers();
    check_absent_in_tree();
    check_leave(1, "a leaf");
    check_leave(2, "a leader");
    check_leave(0, "the root");
    return tap_done();
}
