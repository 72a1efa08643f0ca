/* SPDX-License-Identifier: Apache-2.0 */
/* What is understood of Slurm's own words, and what --sbatch makes of them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../launcher/sbatch/sbatch.h"
#include "fsdp/base.h"
#include "tap.h"

/* As Slurm 22.05 and 23.11 print them, with names of a cluster that has everything. */
static const char partitions[] =
    "PartitionName=cpu AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL AllocNodes=ALL Default=YES "
    "QoS=N/A DefaultTime=00:10:00 DisableRootJobs=NO MaxNodes=UNLIMITED MaxTime=1-00:00:00 "
    "MinNodes=0 Nodes=c[0-7] State=UP TotalCPUs=512 TotalNodes=8 DefMemPerNode=UNLIMITED\n"
    "PartitionName=gpu AllowAccounts=physics,chem Default=NO MaxNodes=4 MaxTime=UNLIMITED "
    "MinNodes=2 Nodes=g[0-5] State=UP\n"
    "PartitionName=old Default=NO MaxNodes=UNLIMITED MaxTime=02:00:00 MinNodes=1 State=DRAIN\n";
static const char nodes[] = "cpu|64|256000|(null)|idle|2|1\n"
                            "cpu|64|256000|(null)|mix|2|1\n"
                            "cpu|64|256000|(null)|down*|2|1\n"
                            "cpu|64|256000|(null)|drain|2|1\n"
                            "gpu|128|1024000|gpu:a100:4(S:0-1,2),nic:1|idle~|2|2\n"
                            "gpu|128|1024000|gpu:a100:4(S:0-1,2),nic:1|alloc|2|2\n"
                            "gpu|96|512000|gpu:2|alloc|2|2\n"
                            "gpu|128|1024000|gpu:a100:4(S:0-1,2),nic:1|idle*|2|2\n"
                            "old|1|100|(null)|drng|1|1\n";
static const char config[] = "Configuration data as of 2026-11-24T12:59:21\n"
                             "ClusterName             = hills\n"
                             "MaxTasksPerNode         = 100\n"
                             "RequeueExit             = 1,70-75\n"
                             "RequeueExitHold         = (null)\n"
                             "SLURM_VERSION           = 22.05.8\n";

static void fill(struct slurm_cluster *out)
{
    *out = (struct slurm_cluster){.most_tasks = SLURM_UNLIMITED};
    if (slurm_shapes_parse(out, nodes, NULL) || slurm_partitions_parse(out, partitions, NULL))
        diag("the samples are not read");
    slurm_config_parse(out, config);
}

static void samples_are_read(void)
{
    struct slurm_cluster c;

    fill(&c);
    ok(c.npartitions == 3 && c.partitions[0].is_default && !c.partitions[1].is_default &&
           c.partitions[0].max_nodes == SLURM_UNLIMITED && c.partitions[0].max_seconds == 86400 &&
           c.partitions[1].max_nodes == 4 && c.partitions[1].min_nodes == 2 &&
           c.partitions[1].max_seconds == SLURM_UNLIMITED &&
           !strcmp(c.partitions[1].accounts, "physics,chem") &&
           !strcmp(c.partitions[2].state, "DRAIN"),
       "partitions");
    ok(c.nshapes == 4 && c.shapes[0].nnodes == 4 && c.shapes[0].nusable == 2 &&
           c.shapes[0].ngpus == 0 && c.shapes[0].nsockets == 2,
       "nodes that are alike are counted, those that are down too");
    ok(c.shapes[1].ngpus == 4 && !strcmp(c.shapes[1].gpu, "a100") && c.shapes[1].nnodes == 3 &&
           c.shapes[1].nusable == 2 && c.shapes[1].nthreads == 2 &&
           c.shapes[1].memory_mib == 1024000 && c.shapes[2].ngpus == 2 && !c.shapes[2].gpu[0],
       "GPUs, with a type and without");
    ok(!strcmp(c.name, "hills") && c.most_tasks == 100 && !strcmp(c.requeue_exit, "1,70-75"),
       "the configuration");
    slurm_cluster_destroy(&c);
    ok(slurm_mpi_has_pmix("MPI plugin types are...\n\tpmix\n\tnone\n") &&
           slurm_mpi_has_pmix("srun: MPI types are...\nsrun: pmix_v4\n") &&
           !slurm_mpi_has_pmix("MPI plugin types are...\n\tnone\n\tpmi2\n\tcray_nopmix\n"),
       "kinds of --mpi");
    ok(slurm_range_has("1,70-75", 1) && slurm_range_has("1,70-75", 72) &&
           !slurm_range_has("1,70-75", 2) && !slurm_range_has("", 0) && !slurm_range_has("x-y", 0),
       "ranges of numbers");
}

static void time_is(const char *text, int64_t want)
{
    const int64_t got = slurm_seconds_parse(text);
    ok(got == want, "the time '%s' is %lld s (%lld)", text, (long long)want, (long long)got);
}

static void times_are_read(void)
{
    time_is("90", 5400);
    time_is("5:30", 330);
    time_is("02:00:00", 7200);
    time_is("1-12", 129600);
    time_is("1-00:30", 88200);
    time_is("2-01:00:01", 176401);
    time_is("INFINITE", SLURM_UNLIMITED);
    time_is("", -1);
    time_is("1:2:3:4", -1);
    time_is("1-2-3", -1);
    time_is("1:2-3", -1);
    time_is("-5", -1);
    time_is("9999999999", -1);
    time_is("2h", -1);
    time_is("1-1:1:1:1", -1);
}

/* ---- plans ---- */

static struct sbatch_request request(int n)
{
    struct sbatch_request r = SBATCH_REQUEST_INIT;
    r.nodes = n;
    return r;
}

static void plan_is(const char *what, const struct sbatch_request *r, enum sbatch_device device,
                    const char *want)
{
    struct slurm_cluster c;
    struct sbatch_plan p;
    struct fsdp_err err = FSDP_ERR_INIT;
    char got[FSDP_ERR_TEXT_NBYTES];

    fill(&c);
    if (sbatch_plan_make(&p, r, &c, device, &err))
        snprintf(got, sizeof got, "%s", err.text);
    else
        snprintf(got, sizeof got, "%s %d x %d, %d CPUs, %d GPUs, %lld MiB, %lld s",
                 p.partition.name, p.nodes, p.ntasks_per_node, p.cpus_per_task, p.gpus_per_node,
                 (long long)p.memory_mib, (long long)p.seconds);
    ok(strcmp(got, want) == 0, "%s: %s", what, want);
    if (strcmp(got, want) != 0)
        diag("got %s", got);
    slurm_cluster_destroy(&c);
}

static void plans_are_made(void)
{
    struct sbatch_request r = request(2);

    plan_is("CPUs", &r, SBATCH_DEVICE_AUTO, "cpu 2 x 2, 32 CPUs, 0 GPUs, 0 MiB, 86400 s");
    r.time = "60";
    r.ntasks_per_node = 5;
    plan_is("tasks and time as asked", &r, SBATCH_DEVICE_AUTO,
            "cpu 2 x 5, 12 CPUs, 0 GPUs, 0 MiB, 3600 s");
    r = request(3);
    r.partition = "gpu";
    r.account = "chem";
    plan_is("a rank for each GPU", &r, SBATCH_DEVICE_AUTO,
            "gpu 3 x 4, 32 CPUs, 4 GPUs, 0 MiB, 86400 s");
    r.nodes = 4;
    plan_is("as many GPUs as so many nodes have", &r, SBATCH_DEVICE_AUTO,
            "gpu 4 x 2, 48 CPUs, 2 GPUs, 0 MiB, 86400 s");
    r.nodes = 2;
    r.gpus_per_node = 3;
    plan_is("a part of a node", &r, SBATCH_DEVICE_AUTO,
            "gpu 2 x 3, 32 CPUs, 3 GPUs, 768000 MiB, 86400 s");
    r = request(2);
    r.partition = "gpu";
    r.account = "chem";
    r.ntasks_per_node = 1;
    plan_is("a GPU for each rank", &r, SBATCH_DEVICE_AUTO,
            "gpu 2 x 1, 48 CPUs, 1 GPUs, 256000 MiB, 86400 s");
    r.ntasks_per_node = -1;
    plan_is("fsdp.device=cpu takes no GPUs", &r, SBATCH_DEVICE_CPU,
            "gpu 2 x 2, 48 CPUs, 0 GPUs, 0 MiB, 86400 s");
}

static void plans_are_refused(void)
{
    struct sbatch_request r = request(9);

    plan_is("too many nodes", &r, SBATCH_DEVICE_AUTO,
            "--nodes 9: partition cpu has 4 nodes. Type --nodes 4 or fewer, or another "
            "--partition");
    r = request(1);
    r.ntasks_per_node = 65;
    plan_is("too many tasks", &r, SBATCH_DEVICE_AUTO,
            "--ntasks-per-node 65: nodes of partition cpu have 64 CPUs at most. Type "
            "--ntasks-per-node 64 or fewer");
    r = request(1);
    plan_is("no GPUs for fsdp.device=cuda", &r, SBATCH_DEVICE_GPU,
            "fsdp.device=cuda: nodes of partition cpu have no GPUs that Slurm gives. Type "
            "--partition with another");
    r.gpus_per_node = 1;
    plan_is("no GPUs", &r, SBATCH_DEVICE_AUTO,
            "--gpus-per-node: nodes of partition cpu have no GPUs that Slurm gives. Type "
            "--partition with another, or leave --gpus-per-node out");
    plan_is("GPUs for a CPU run", &r, SBATCH_DEVICE_CPU,
            "--gpus-per-node 1: the configuration says fsdp.device=cpu. Leave --gpus-per-node out, "
            "or type fsdp.device=auto behind the configuration");
    r = request(2);
    r.partition = "gpu";
    r.account = "phys";
    plan_is("another account", &r, SBATCH_DEVICE_AUTO,
            "--account phys: partition gpu takes jobs of other accounts. Type --account with one "
            "of: physics,chem");
    r.account = "physics";
    r.gpus_per_node = 8;
    plan_is("too many GPUs", &r, SBATCH_DEVICE_AUTO,
            "--gpus-per-node 8: nodes of partition gpu have 4 GPUs at most. Type --gpus-per-node "
            "4");
    r.gpus_per_node = 4;
    r.nodes = 4;
    plan_is("too few nodes with so many", &r, SBATCH_DEVICE_AUTO,
            "--nodes 4: 3 of the 4 nodes of partition gpu have 4 GPUs and 4 CPUs. Type --nodes 3, "
            "or ask less of each node");
    r.nodes = 1;
    plan_is("too few nodes for the partition", &r, SBATCH_DEVICE_AUTO,
            "--nodes 1: partition gpu takes jobs of 2 nodes at least (MinNodes). Type --nodes 2, "
            "or another --partition");
    r.nodes = 2;
    r.ntasks_per_node = 6;
    plan_is("more ranks than GPUs", &r, SBATCH_DEVICE_AUTO,
            "--ntasks-per-node 6: a rank needs a GPU of its own, and a node gives 4. Type "
            "--ntasks-per-node 4, or --gpus-per-node 0 to train on CPUs");
    r.ntasks_per_node = 101;
    r.gpus_per_node = 0;
    plan_is("more tasks than Slurm starts", &r, SBATCH_DEVICE_AUTO,
            "--ntasks-per-node 101: this Slurm starts 100 tasks a node at most (MaxTasksPerNode). "
            "Type --ntasks-per-node 100");
    r = request(1);
    r.partition = "old";
    plan_is("a partition that starts nothing", &r, SBATCH_DEVICE_AUTO,
            "partition old is DRAIN and starts no jobs now. Type --partition with another of: "
            "cpu, gpu");
    r.partition = "gpus";
    plan_is("a partition that is not there", &r, SBATCH_DEVICE_AUTO,
            "--partition gpus: this cluster has no such partition. Type one of: cpu, gpu, old");
    r = request(1);
    r.time = "1-00:00:01";
    plan_is("too long", &r, SBATCH_DEVICE_AUTO,
            "--time 1-00:00:01: partition cpu gives a job at most 1-00:00:00 (MaxTime). Type "
            "--time 1-00:00:00: the run saves before its time is over, and the job is queued "
            "again");
    r.saves_nothing = true;
    plan_is("too long without checkpoints", &r, SBATCH_DEVICE_AUTO,
            "--time 1-00:00:01: partition cpu gives a job at most 1-00:00:00 (MaxTime). Type "
            "--time 1-00:00:00, and set checkpoint.path, so that the run saves before its time is "
            "over");
    r.saves_nothing = false;
    r.time = "soon";
    plan_is("no time", &r, SBATCH_DEVICE_AUTO,
            "--time soon: expected a time as Slurm takes it, such as 90 (minutes), 08:00:00 or "
            "2-00:00:00");
}

/* ---- texts that are damaged ---- */

static void damage(char *text, size_t nbytes)
{
    static const char *const odd[] = {
        "99999999999999999999", "-1",      "|", "\n", "=", "\x1b[2J", "(", "gpu:::", "\xff", " ",
        "Default=YES",          "MaxTime="};
    for (int i = rand() % 6; i >= 0; i--) {
        const char *put = odd[(size_t)rand() % (sizeof odd / sizeof odd[0])];
        const size_t len = strlen(text), at = (size_t)rand() % (len + 1);
        const size_t cut = (size_t)rand() % 8, rest = len - at < cut ? len - at : cut;
        const size_t add = strlen(put);
        if (rand() % 4 == 0)
            text[at] = '\0';
        else if (len + add + 1 < nbytes) {
            memmove(text + at + add, text + at + rest, len - at - rest + 1);
            memcpy(text + at, put, add);
        }
    }
}

static bool is_sane(const struct slurm_cluster *c)
{
    bool sane = true;

    for (int i = 0; i < c->nshapes; i++) {
        const struct slurm_shape *s = &c->shapes[i];
        sane &= s->ncpus > 0 && s->ncpus <= SLURM_MOST_COUNT && s->ngpus >= 0 && s->nsockets > 0 &&
                s->nthreads > 0 && s->memory_mib >= 0 && s->nnodes > 0 && s->nusable <= s->nnodes;
    }
    for (int i = 0; i < c->npartitions; i++) {
        const struct slurm_partition *p = &c->partitions[i];
        sane &= p->name[0] && !strpbrk(p->name, " \n\x1b") && p->max_nodes >= 0 &&
                p->min_nodes >= 0 && p->max_seconds > 0;
    }
    return sane;
}

static void damage_is_survived(void)
{
    enum { ROUNDS = 20000 };
    int insane = 0, planned = 0, refused = 0, bad_plans = 0;
    char text[4096];

    srand(1);
    for (int i = 0; i < ROUNDS; i++) {
        struct slurm_cluster c = {.most_tasks = SLURM_UNLIMITED};
        struct sbatch_plan p;
        struct sbatch_request r = request(1 + rand() % 4);
        snprintf(text, sizeof text, "%s", nodes);
        damage(text, sizeof text);
        int rc = slurm_shapes_parse(&c, text, NULL);
        snprintf(text, sizeof text, "%s", partitions);
        damage(text, sizeof text);
        rc |= slurm_partitions_parse(&c, text, NULL);
        snprintf(text, sizeof text, "%s", config);
        damage(text, sizeof text);
        slurm_config_parse(&c, text);
        insane += !is_sane(&c);
        r.partition = rand() % 2 ? "gpu" : NULL;
        r.account = rand() % 2 ? "chem" : NULL;
        r.ntasks_per_node = rand() % 3 ? -1 : rand() % 9;
        if (rc || sbatch_plan_make(&p, &r, &c, SBATCH_DEVICE_AUTO, NULL))
            refused++;
        else {
            planned++;
            bad_plans += p.ntasks_per_node < 1 || p.cpus_per_task < 1 || p.seconds < 1 ||
                         p.nodes > p.shape.nnodes || p.gpus_per_node > p.shape.ngpus ||
                         (int64_t)p.cpus_per_task * p.ntasks_per_node > p.shape.ncpus;
        }
        slurm_cluster_destroy(&c);
    }
    ok(!insane, "%d damaged texts: what is read of them is sane (%d are not)", ROUNDS, insane);
    ok(!bad_plans && planned > 1000 && refused > 1000,
       "of them %d plans that the nodes have room for (%d have not), %d refusals", planned,
       bad_plans, refused);
}

/* ---- the script ---- */

static bool writes(const struct sbatch_run *run, const char *account, char *text, size_t nbytes)
{
    struct slurm_cluster c;
    struct sbatch_plan p;
    struct sbatch_request r = request(2);

    fill(&c);
    FILE *to = fmemopen(text, nbytes, "w");
    bool good = to && sbatch_plan_make(&p, &r, &c, SBATCH_DEVICE_AUTO, NULL) == FSDP_OK;
    if (good) {
        p.account = account;
        good = sbatch_script_write(to, &p, run, &c, NULL) == FSDP_OK;
    }
    if (to)
        fclose(to);
    slurm_cluster_destroy(&c);
    return good;
}

static void scripts_are_written(void)
{
    char *words[] = {"data.path=it's here", "log.metrics=", "train.steps=$(rm x)"};
    struct sbatch_run run = {.launcher = "/opt/fsdp/bin/fsdp-launch",
                             .folder = "/home/a b",
                             .options = " -v",
                             .config = "-run.yaml",
                             .noverrides = 3,
                             .overrides = words,
                             .name = "run",
                             .output = "/home/a b/logs/%x-%j.out"};
    char text[8192] = "", *output = NULL, name[SLURM_NAME_NBYTES];

    ok(writes(&run, "physics", text, sizeof text) && strstr(text, "cd '/home/a b' || exit 1\n") &&
           strstr(text, "#SBATCH --output=\"/home/a b/logs/%x-%j.out\"\n") &&
           strstr(text, "#SBATCH --account=physics\n") &&
           strstr(text, " \\\n    'data.path=it'\\''s here' \\\n    log.metrics= \\\n"
                        "    'train.steps=$(rm x)' &\n"),
       "words of the command line stay words");
    ok(!writes(&run, "a\nb", text, sizeof text) && !writes(&run, "a\"b", text, sizeof text),
       "what would end a line of #SBATCH is refused");
    ok(sbatch_output_make(&output, NULL, "/a/50%", NULL) == FSDP_OK &&
           !strcmp(output, "/a/50%%/logs/%x-%j.out"),
       "the folder's own percent signs are no pattern: %s", output);
    fsdp_free(output);
    sbatch_name_make(name, "/x/my run;1.v2.yaml");
    ok(!strcmp(name, "my_run_1.v2"), "the job's name: %s", name);
}

static enum sbatch_owner owner(const char *path, const char *text)
{
    FILE *to = fopen(path, "w");

    if (to) {
        fputs(text, to);
        fclose(to);
    }
    return sbatch_script_owner(path);
}

static void files_are_known(void)
{
    char folder[] = "/tmp/test_sbatch_XXXXXX", path[64], text[8192] = "";
    struct sbatch_run run = {.launcher = "/opt/fsdp/bin/fsdp-launch",
                             .folder = "/home/a",
                             .options = "",
                             .config = "run.yaml",
                             .name = "run",
                             .output = "/home/a/logs/%x-%j.out"};

    if (!mkdtemp(folder))
        return;
    snprintf(path, sizeof path, "%s/x.sbatch", folder);
    ok(sbatch_script_owner(path) == SBATCH_NONE, "a script that is not there may be written");
    ok(writes(&run, NULL, text, sizeof text) && owner(path, text) == SBATCH_OURS,
       "one of ours is replaced");
    char *time = strstr(text, "--time=");
    if (time)
        time[7]++;
    ok(time && owner(path, text) == SBATCH_EDITED, "but not after an edit within it");
    if (time)
        time[7]--;
    strcat(text, "# mine\n");
    ok(owner(path, text) == SBATCH_EDITED, "nor after one at its end");
    ok(owner(path, "#!/bin/bash\n# x\n# Written by fsdp-launch --sbatch for y\n") == SBATCH_EDITED,
       "nor without a checksum");
    ok(owner(path, "#!/bin/bash\necho mine\n") == SBATCH_FOREIGN &&
           owner(path, "") == SBATCH_FOREIGN,
       "no other is ours");
    remove(path);
    ok(mkfifo(path, 0600) == 0 && sbatch_script_owner(path) == SBATCH_FOREIGN &&
           sbatch_script_owner(folder) == SBATCH_FOREIGN,
       "a pipe that nobody writes is not waited for, and a folder is no script");
    remove(path);
    rmdir(folder);
}

int main(void)
{
    samples_are_read();
    times_are_read();
    plans_are_made();
    plans_are_refused();
    damage_is_survived();
    scripts_are_written();
    files_are_known();
    return tap_done();
}
