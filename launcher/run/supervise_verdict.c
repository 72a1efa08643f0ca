/* SPDX-License-Identifier: Apache-2.0 */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "supervise.h"

/* The others notice a loss by themselves within moments and end with their own words; only then are
 * they asked to. A foreign program knows nothing of the others; one that uses fsdp/launch.h does.
 */
enum { FIND_OUT_S = 2 };

static bool foreign(const struct launch_super *s)
{
    return s->job.args->program != NULL && !(s->kvs && boot_kvs_server_seen(s->kvs));
}

static bool exited(int status, int code)
{
    return WIFEXITED(status) && WEXITSTATUS(status) == code;
}

/* Ended by SIGTERM or SIGKILL, or said so with the exit code that a shell would give. */
static bool ended_by_request(int status)
{
    return (WIFSIGNALED(status) && (WTERMSIG(status) == SIGTERM || WTERMSIG(status) == SIGKILL)) ||
           exited(status, 128 + SIGTERM) || exited(status, 128 + SIGKILL);
}

/* An end that does not mean that something went wrong here. */
static bool benign(const struct launch_super *s, int status)
{
    if (exited(status, 0) || (!foreign(s) && exited(status, LAUNCH_REQUEUE)))
        return true;
    return s->nstops && (ended_by_request(status) || exited(status, LAUNCH_REQUEUE));
}

/* A rank that failed because another did. */
static bool consequence(const struct launch_super *s, int status)
{
    return !foreign(s) && exited(status, LAUNCH_PEER_LOST);
}

/* Last words of a rank here, as far as this agent serves them. */
static const char *words_of(const struct launch_super *s, int i)
{
    return s->kvs ? boot_kvs_server_words(s->kvs, s->job.first + i) : NULL;
}

/* "rank 2 on HOST (node1)" */
static void name_rank(const struct launch_super *s, int i, char *out, size_t nbytes)
{
    int rank = s->job.first + i;
    if (!s->agents && s->job.nnodes > 1)
        snprintf(out, nbytes, "rank %d on %s (node%d)", rank, s->job.host,
                 launch_node_of(&s->job, rank));
    else
        snprintf(out, nbytes, "rank %d on %s", rank, s->job.host);
}

/* How process i has ended. Returns out. */
static const char *describe_end(const struct launch_super *s, int i, char *out, size_t nbytes)
{
    char name[FSDP_HOST_NBYTES + 64];
    int status = s->procs[i].status;
    const char *words = words_of(s, i);

    name_rank(s, i, name, sizeof name);
    if (WIFSIGNALED(status))
        snprintf(out, nbytes, "%s was killed by signal %d (%s)", name, WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    else if (words && !(s->job.args->speaks && consequence(s, status)))
        snprintf(out, nbytes, "%s failed: %s (exit code %d)", name, words, WEXITSTATUS(status));
    else if (consequence(s, status))
        snprintf(out, nbytes, "%s lost another rank (exit code %d)", name, WEXITSTATUS(status));
    else
        snprintf(out, nbytes, "%s exited with code %d", name, WEXITSTATUS(status));
    return out;
}

/* Ranks that fail together end in any order. The one that failed by itself goes before one that
 * lost another, and among those that left by themselves the one that said why: the others kept
 * quiet because they had heard it. Words come before their rank's end. */
static bool better_cause(const struct launch_super *s, int i, int than)
{
    int status = s->procs[i].status, other = s->procs[than].status;
    if (consequence(s, status) || consequence(s, other))
        return consequence(s, other) && !consequence(s, status);
    return WIFEXITED(status) && WIFEXITED(other) && words_of(s, i) && !words_of(s, than);
}

static void begin_failing(struct launch_super *s)
{
    if (s->phase == LAUNCH_RUNNING) {
        s->phase = LAUNCH_FAILING;
        s->next = fsdp_time_now() + (foreign(s) ? 0 : FIND_OUT_S);
    }
}

static void tell_cause(struct launch_super *s, int i)
{
    struct fsdp_err why = FSDP_ERR_INIT;
    char end[FSDP_ERR_TEXT_NBYTES];

    fsdp_err_set(&why, FSDP_EPEER, "%s", describe_end(s, i, end, sizeof end));
    s->agents->abort(s->agents, LAUNCH_PEER_LOST, &why);
}

void launch_judge_end(struct launch_super *s)
{
    if (s->agents && s->cause >= 0 && s->agents->health(s->agents, &s->agent_err) == FSDP_OK)
        tell_cause(s, s->cause);
}

void launch_judge(struct launch_super *s, int i)
{
    int status = s->procs[i].status;
    if (benign(s, status))
        return;
    if (s->phase >= LAUNCH_ENDING && ended_by_request(status))
        return;
    if (s->cause < 0 || better_cause(s, i, s->cause))
        s->cause = i;
    begin_failing(s);
    /* Where nodes have terminals of their own, the first word should be the cause's. */
    if (s->agents && !(s->job.args->by_hand && consequence(s, status)))
        tell_cause(s, i);
}

void launch_judge_agents(struct launch_super *s)
{
    if (!s->agents || s->agent_lost || s->agents->health(s->agents, &s->agent_err) == FSDP_OK)
        return;
    s->agent_lost = s->cause < 0; /* else it has only heard of this one's */
    begin_failing(s);
}

static void say_end(const struct launch_super *s, int i)
{
    char text[FSDP_ERR_TEXT_NBYTES];
    int status = s->procs[i].status;

    if (s->job.args->check && exited(status, LAUNCH_FAILED))
        return; /* the check has found something, and said what */
    if (s->job.args->speaks && words_of(s, i) && WIFEXITED(status) && !consequence(s, status))
        return; /* it has said so itself */
    launch_say("%s", describe_end(s, i, text, sizeof text));
}

/* Nodes that were started by hand have a terminal each; what a resource manager starts shares one,
 * where it has been said already. */
static void say_agent_end(const struct launch_super *s)
{
    const struct fsdp_err *why = &s->agent_err;
    char reason[FSDP_ERR_TEXT_NBYTES];

    if (!s->job.args->by_hand || s->job.args->check)
        return;
    if (why->kind == FSDP_ERR_GAVE_UP)
        launch_say("%s", fsdp_err_reason(reason, why));
    else if (why->rank >= 0 && why->rank < s->agents->size)
        launch_say("node %d, %s, is lost: its fsdp-launch was killed, or its network is down",
                   why->rank, s->job.agents->host[why->rank]);
    else
        launch_say("%s", why->text);
}

/* Signals that say that the rank itself is wrong: the same would happen again. */
static bool own_fault(int sig)
{
    return sig == SIGSEGV || sig == SIGABRT || sig == SIGFPE || sig == SIGILL || sig == SIGBUS ||
           sig == SIGSYS || sig == SIGTRAP;
}

static int code_of(const struct launch_super *s, int status)
{
    if (WIFEXITED(status))
        return WEXITSTATUS(status);
    if (foreign(s))
        return 128 + WTERMSIG(status);
    return own_fault(WTERMSIG(status)) ? LAUNCH_FAILED : LAUNCH_PEER_LOST;
}

/* A rank that SIGKILL ended before this agent sent one was killed here, by a user or for its
 * memory: other nodes may hear of the loss sooner than its own agent sees the end. */
static bool ended_by_others(const struct launch_super *s, int status)
{
    bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    return consequence(s, status) || (ended_by_request(status) && !killed);
}

int launch_conclude(const struct launch_super *s)
{
    int code = 0;

    if (s->cause >= 0) {
        /* Of agents, the one whose rank failed first says so. */
        bool elsewhere = s->agent_lost || (s->job.args->by_hand && s->agent_err.status);
        if (!elsewhere || !ended_by_others(s, s->procs[s->cause].status))
            say_end(s, s->cause);
        else
            say_agent_end(s);
        return code_of(s, s->procs[s->cause].status);
    }
    if (s->nstops > 1) {
        launch_say("ended on a second request (signal %d)", s->stop_signal);
        return 128 + s->stop_signal;
    }
    if (s->agent_lost) {
        say_agent_end(s);
        return LAUNCH_PEER_LOST;
    }
    for (int i = 0; i < s->nstarted; i++) {
        int status = s->procs[i].status;
        if (exited(status, LAUNCH_REQUEUE))
            return LAUNCH_REQUEUE;
        if (status && !code) {
            code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
            say_end(s, i);
        }
    }
    return code;
}
