/* SPDX-License-Identifier: Apache-2.0 */
/* From a request and a cluster to a plan, or to the reason why there is none. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "sbatch.h"

enum {
    DAY_S = 24 * 3600,
    CPUS_OF_A_RANK = 8, /* on nodes whose sockets say nothing */
    FEWEST_OF_A_SOCKET = 4,
};

const char *sbatch_time_text(char out[SBATCH_TIME_NBYTES], int64_t seconds)
{
    const int64_t days = seconds / DAY_S, rest = seconds % DAY_S;
    char day[24] = "";

    if (days)
        snprintf(day, sizeof day, "%" PRId64 "-", days);
    snprintf(out, SBATCH_TIME_NBYTES, "%.12s%02d:%02d:%02d", day, (int)(rest / 3600),
             (int)(rest / 60 % 60), (int)(rest % 60));
    return out;
}

/* ---- the partition ---- */

static void list_partitions(char *out, size_t nbytes, const struct slurm_cluster *cluster,
                            const struct slurm_partition *but)
{
    size_t len = 0;

    out[0] = '\0';
    for (int i = 0; i < cluster->npartitions && len + SLURM_NAME_NBYTES + 8 < nbytes; i++)
        if (&cluster->partitions[i] != but)
            len += (size_t)snprintf(out + len, nbytes - len, "%s%s", len ? ", " : "",
                                    cluster->partitions[i].name);
}

static int choose_partition(struct sbatch_plan *out, const struct sbatch_request *request,
                            const struct slurm_cluster *cluster, struct fsdp_err *err)
{
    const struct slurm_partition *found = NULL;
    char names[400];

    for (int i = 0; i < cluster->npartitions && !found; i++) {
        const struct slurm_partition *p = &cluster->partitions[i];
        if (request->partition ? !strcmp(p->name, request->partition) : p->is_default)
            found = p;
    }
    list_partitions(names, sizeof names, cluster, found);
    if (!found && request->partition)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "--partition %s: this cluster has no such partition. Type one of: %s",
                            request->partition, names);
    if (!found)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "this cluster has no default partition. Type --partition with one "
                            "of: %s",
                            names);
    out->partition = *found;
    if (found->state[0] && strcmp(found->state, "UP") != 0)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "partition %s is %s and starts no jobs now. Type --partition with "
                            "another of: %s",
                            found->name, found->state, names);
    /* Slurm alone knows the account of one who gives none. */
    if (request->account && strcmp(found->accounts, "ALL") != 0 &&
        !slurm_list_has(found->accounts, request->account))
        return fsdp_err_set(err, FSDP_EINVAL,
                            "--account %s: partition %s takes jobs of other accounts. Type "
                            "--account with one of: %.300s",
                            request->account, found->name, found->accounts);
    return FSDP_OK;
}

/* ---- nodes ---- */

static bool is_in(const struct slurm_shape *shape, const struct sbatch_plan *plan)
{
    return !strcmp(shape->partition, plan->partition.name);
}

/* Of this partition: all nodes, and what the best of them has. */
static struct slurm_shape best_of(const struct sbatch_plan *plan,
                                  const struct slurm_cluster *cluster)
{
    struct slurm_shape best = {0};

    for (int i = 0; i < cluster->nshapes; i++) {
        const struct slurm_shape *s = &cluster->shapes[i];
        if (!is_in(s, plan))
            continue;
        best.nnodes += s->nnodes;
        best.nusable += s->nusable;
        best.ncpus = s->ncpus > best.ncpus ? s->ncpus : best.ncpus;
        best.ngpus = s->ngpus > best.ngpus ? s->ngpus : best.ngpus;
    }
    return best;
}

/* Nodes with at least this; the plan's shape becomes the least that all of them have. */
static void take_nodes(struct sbatch_plan *plan, const struct slurm_cluster *cluster, int ngpus,
                       int ncpus)
{
    struct slurm_shape *least = &plan->shape;

    *least = (struct slurm_shape){0};
    for (int i = 0; i < cluster->nshapes; i++) {
        const struct slurm_shape *s = &cluster->shapes[i];
        if (!is_in(s, plan) || s->ngpus < ngpus || s->ncpus < ncpus)
            continue;
        const int nnodes = least->nnodes + s->nnodes, nusable = least->nusable + s->nusable;
        if (!least->nnodes || s->ncpus < least->ncpus)
            *least = *s;
        least->ngpus = s->ngpus < least->ngpus ? s->ngpus : least->ngpus;
        least->memory_mib = s->memory_mib < least->memory_mib ? s->memory_mib : least->memory_mib;
        least->nnodes = nnodes;
        least->nusable = nusable;
    }
}

/* The most GPUs a node that enough nodes have; 0: there are none to take. */
static int default_gpus(const struct sbatch_plan *plan, const struct slurm_cluster *cluster)
{
    int best = 0;

    for (int i = 0; i < cluster->nshapes; i++) {
        struct sbatch_plan look = *plan;
        const struct slurm_shape *s = &cluster->shapes[i];
        if (!is_in(s, plan) || s->ngpus <= best)
            continue;
        take_nodes(&look, cluster, s->ngpus, 1);
        if (look.shape.nnodes >= plan->nodes)
            best = s->ngpus;
    }
    return best;
}

static int check_count(const struct sbatch_plan *plan, const struct slurm_shape *all,
                       struct fsdp_err *err)
{
    const struct slurm_partition *p = &plan->partition;

    if (!all->nnodes)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "partition %s has no nodes. Type --partition with another", p->name);
    if (plan->nodes > all->nnodes)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "--nodes %d: partition %s has %d node%s. Type --nodes %d or fewer, or "
                            "another --partition",
                            plan->nodes, p->name, all->nnodes, all->nnodes == 1 ? "" : "s",
                            all->nnodes);
    if (plan->nodes > p->max_nodes)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "--nodes %d: partition %s gives a job at most %" PRId64 " (MaxNodes). "
                            "Type --nodes %" PRId64 ", or another --partition",
                            plan->nodes, p->name, p->max_nodes, p->max_nodes);
    if (plan->nodes < p->min_nodes)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "--nodes %d: partition %s takes jobs of %" PRId64 " nodes at least "
                            "(MinNodes). Type --nodes %" PRId64 ", or another --partition",
                            plan->nodes, p->name, p->min_nodes, p->min_nodes);
    return FSDP_OK;
}

static int choose_gpus(struct sbatch_plan *plan, const struct sbatch_request *request,
                       const struct slurm_cluster *cluster, const struct slurm_shape *all,
                       enum sbatch_device device, struct fsdp_err *err)
{
    const int asked = request->gpus_per_node;
    const char *name = plan->partition.name;

    if (asked > 0 && device == SBATCH_DEVICE_CPU)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "--gpus-per-node %d: the configuration says fsdp.device=cpu. Leave "
                            "--gpus-per-node out, or type fsdp.device=auto behind the "
                            "configuration",
                            asked);
    if ((asked > 0 || device == SBATCH_DEVICE_GPU) && !all->ngpus)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "%s: nodes of partition %s have no GPUs that Slurm gives. Type "
                            "--partition with another%s",
                            asked > 0 ? "--gpus-per-node" : "fsdp.device=cuda", name,
                            asked > 0 ? ", or leave --gpus-per-node out" : "");
    if (asked > all->ngpus)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "--gpus-per-node %d: nodes of partition %s have %d GPUs at most. Type "
                            "--gpus-per-node %d",
                            asked, name, all->ngpus, all->ngpus);
    plan->gpus_per_node = asked >= 0                    ? asked
                          : device == SBATCH_DEVICE_CPU ? 0
                                                        : default_gpus(plan, cluster);
    if (asked < 0 && request->ntasks_per_node > 0 && plan->gpus_per_node > request->ntasks_per_node)
        plan->gpus_per_node = request->ntasks_per_node; /* a GPU each */
    if (device == SBATCH_DEVICE_GPU && !plan->gpus_per_node)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "--nodes %d: fsdp.device=cuda, and partition %s has fewer nodes with "
                            "GPUs. Type fewer --nodes",
                            plan->nodes, name);
    return FSDP_OK;
}

static int check_fit(const struct sbatch_plan *plan, const struct slurm_shape *all,
                     struct fsdp_err *err)
{
    const struct slurm_shape *fit = &plan->shape;
    char what[64] = "";

    if (plan->gpus_per_node)
        snprintf(what, sizeof what, "%d GPUs and ", plan->gpus_per_node);
    if (plan->ntasks_per_node > all->ncpus)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "--ntasks-per-node %d: nodes of partition %s have %d CPUs at most. "
                            "Type --ntasks-per-node %d or fewer",
                            plan->ntasks_per_node, plan->partition.name, all->ncpus, all->ncpus);
    if (plan->nodes > fit->nnodes)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "--nodes %d: %d of the %d nodes of partition %s have %s%d CPUs. Type "
                            "--nodes %d, or ask less of each node",
                            plan->nodes, fit->nnodes, all->nnodes, plan->partition.name, what,
                            plan->ntasks_per_node, fit->nnodes);
    return FSDP_OK;
}

/* ---- tasks and what each has ---- */

/* A rank for each GPU; on CPUs for each socket, which is a NUMA domain as far as Slurm knows. */
static int default_tasks(const struct sbatch_plan *plan)
{
    const struct slurm_shape *s = &plan->shape;

    if (plan->gpus_per_node)
        return plan->gpus_per_node;
    if (s->ncpus / s->nsockets / s->nthreads >= FEWEST_OF_A_SOCKET)
        return s->nsockets;
    return s->ncpus / CPUS_OF_A_RANK > 1 ? s->ncpus / CPUS_OF_A_RANK : 1;
}

static int choose_tasks(struct sbatch_plan *plan, const struct sbatch_request *request,
                        const struct slurm_cluster *cluster, const struct slurm_shape *all,
                        struct fsdp_err *err)
{
    take_nodes(plan, cluster, plan->gpus_per_node,
               request->ntasks_per_node > 0 ? request->ntasks_per_node : 1);
    plan->ntasks_per_node = request->ntasks_per_node;
    if (plan->ntasks_per_node < 1 && plan->shape.nnodes)
        plan->ntasks_per_node = default_tasks(plan);
    take_nodes(plan, cluster, plan->gpus_per_node,
               plan->ntasks_per_node > 0 ? plan->ntasks_per_node : 1);
    const int tasks = plan->ntasks_per_node, gpus = plan->gpus_per_node;
    if (gpus && tasks > gpus)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "--ntasks-per-node %d: a rank needs a GPU of its own, and a node gives "
                            "%d. Type --ntasks-per-node %d, or --gpus-per-node 0 to train on CPUs",
                            tasks, gpus, gpus);
    if (gpus && tasks > 0 && tasks < gpus)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "--gpus-per-node %d: %d ranks a node use %d GPUs. Type --gpus-per-node "
                            "%d, or --ntasks-per-node %d",
                            gpus, tasks, tasks, tasks, gpus);
    if (tasks > cluster->most_tasks)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "--ntasks-per-node %d: this Slurm starts %" PRId64 " tasks a node at "
                            "most (MaxTasksPerNode). Type --ntasks-per-node %" PRId64,
                            tasks, cluster->most_tasks, cluster->most_tasks);
    return check_fit(plan, all, err);
}

/* A node is shared out by GPUs where not all are taken; whole cores where that leaves one. */
static void share_node(struct sbatch_plan *plan)
{
    const struct slurm_shape *s = &plan->shape;
    const int64_t part = plan->gpus_per_node ? plan->gpus_per_node : 1;
    const int64_t whole = plan->gpus_per_node ? s->ngpus : 1;
    int64_t cpus = s->ncpus * part / whole / plan->ntasks_per_node;

    if (cpus > s->nthreads)
        cpus -= cpus % s->nthreads;
    plan->cpus_per_task = cpus < 1 ? 1 : (int)cpus;
    plan->memory_mib = part == whole ? 0 : s->memory_mib * part / whole;
}

/* ---- time ---- */

static int choose_time(struct sbatch_plan *plan, const struct sbatch_request *request,
                       struct fsdp_err *err)
{
    const int64_t most = plan->partition.max_seconds;
    char text[SBATCH_TIME_NBYTES];

    plan->seconds = most < DAY_S ? most : DAY_S;
    if (!request->time)
        return FSDP_OK;
    plan->seconds = slurm_seconds_parse(request->time);
    if (plan->seconds <= 0)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "--time %s: expected a time as Slurm takes it, such as 90 (minutes), "
                            "08:00:00 or 2-00:00:00",
                            request->time);
    if (plan->seconds > most)
        return fsdp_err_set(
            err, FSDP_EINVAL,
            "--time %s: partition %s gives a job at most %s (MaxTime). Type --time %s%s",
            request->time, plan->partition.name, sbatch_time_text(text, most), text,
            request->saves_nothing
                ? ", and set checkpoint.path, so that the run saves before its time is over"
                : ": the run saves before its time is over, and the job is queued again");
    if (plan->seconds > 1000 * (int64_t)DAY_S)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "--time %s: without an end the run cannot save before it. Type a "
                            "time of at most 1000 days",
                            request->time);
    return FSDP_OK;
}

/* ---- all of it ---- */

static void note(struct sbatch_plan *plan, const char *fmt, ...) FSDP_PRINTF(2, 3);
static void note(struct sbatch_plan *plan, const char *fmt, ...)
{
    const size_t len = strlen(plan->note);
    va_list ap;

    if (len + 3 >= sizeof plan->note)
        return;
    snprintf(plan->note + len, sizeof plan->note - len, "%s", len ? "; " : "");
    va_start(ap, fmt);
    vsnprintf(plan->note + strlen(plan->note), sizeof plan->note - strlen(plan->note), fmt, ap);
    va_end(ap);
}

static void note_what_is_odd(struct sbatch_plan *plan, const struct slurm_cluster *cluster)
{
    const struct slurm_partition *p = &plan->partition;

    if (plan->shape.nusable < plan->nodes)
        note(plan, "%d of the %d nodes that fit are down or drained; the job waits until %d are up",
             plan->shape.nnodes - plan->shape.nusable, plan->shape.nnodes, plan->nodes);
    if (!plan->account && strcmp(p->accounts, "ALL") != 0)
        note(plan,
             "partition %s takes jobs of some accounts alone; if your own is not among them, "
             "type --account with one of: %.200s",
             p->name, p->accounts);
    if (slurm_range_has(cluster->requeue_exit, 1) || slurm_range_has(cluster->requeue_exit, 2))
        note(plan,
             "this Slurm queues jobs again after exit status %.40s (RequeueExit), so a run "
             "that fails by itself starts again, too",
             cluster->requeue_exit);
}

int sbatch_plan_make(struct sbatch_plan *out, const struct sbatch_request *request,
                     const struct slurm_cluster *cluster, enum sbatch_device device,
                     struct fsdp_err *err)
{
    *out = (struct sbatch_plan){.nodes = request->nodes > 0 ? request->nodes : 1,
                                .account = request->account,
                                .saves_nothing = request->saves_nothing,
                                .pmix = cluster->has_pmix};
    FSDP_TRY(choose_partition(out, request, cluster, err));
    const struct slurm_shape all = best_of(out, cluster);
    FSDP_TRY(check_count(out, &all, err));
    FSDP_TRY(choose_gpus(out, request, cluster, &all, device, err));
    FSDP_TRY(choose_tasks(out, request, cluster, &all, err));
    FSDP_TRY(choose_time(out, request, err));
    share_node(out);
    out->force_cpu = request->gpus_per_node == 0 && device == SBATCH_DEVICE_AUTO;
    note_what_is_odd(out, cluster);
    return FSDP_OK;
}
