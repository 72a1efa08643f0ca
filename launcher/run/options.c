/* SPDX-License-Identifier: Apache-2.0 */
/* The options of fsdp-launch, and its --help. */
#include "options.h"

static int take_schedule(void *to, const char *text, struct fsdp_err *err)
{
    struct launch_args *args = to;

    args->dump_schedule = true;
    args->dump_file = text;
    return text && !*text
               ? fsdp_err_set(err, FSDP_EINVAL, "a file is missing; write --dump-schedule=FILE")
               : FSDP_OK;
}

static int take_script(void *to, const char *text, struct fsdp_err *err)
{
    struct sbatch_request *request = to;

    request->wanted = true;
    request->file = text;
    return text && !*text ? fsdp_err_set(err, FSDP_EINVAL, "a file is missing; write --sbatch=FILE")
                          : FSDP_OK;
}

static int take_word(void *to, const char *text, struct fsdp_err *err)
{
    *(const char **)to = text;
    return *text ? FSDP_OK : fsdp_err_set(err, FSDP_EINVAL, "the value is empty");
}

#define AT(field) offsetof(struct launch_args, field)
enum { MOST = 1 << 20 };

static const struct fsdp_cli_option rank_rows[] = {
    {NULL, 'n', "N", FSDP_CLI_INT, AT(nranks), 1, MOST, .help = "start N ranks here"},
    {"ranks-per-task", .arg = "N", .kind = FSDP_CLI_INT, .offset = AT(ranks_per_task), .least = 1,
     .most = MOST,
     .help = "under srun or mpirun: each task starts N ranks and is not a rank itself (for one "
             "task per node)"},
    {"nodes", .arg = "K", .kind = FSDP_CLI_INT, .offset = AT(nnodes), .least = 1, .most = MOST,
     .help = "emulate K nodes of N/K ranks each; with --sbatch: the nodes of the job"},
    {"nnodes", .arg = "N", .kind = FSDP_CLI_INT, .offset = AT(by_hand), .least = 1, .most = MOST,
     .help = "this is one of N nodes that you start by hand, each with its own -n"},
    {"node-rank", .arg = "R", .kind = FSDP_CLI_INT, .offset = AT(node_rank), .least = 0,
     .most = MOST, .help = "with --nnodes: this is node R, from 0 (default: NODE_RANK)"},
    {"master-addr", .arg = "HOST", .kind = FSDP_CLI_OWN, .offset = AT(master_addr),
     .parse = take_word, .help = "with --nnodes: where node 0 runs (default: MASTER_ADDR)"},
    {"master-port", .arg = "P", .kind = FSDP_CLI_INT, .offset = AT(master_port), .least = 1,
     .most = 65535, .help = "with --nnodes: its port (default: MASTER_PORT, or 29500)"},
    {"ranks-per-gpu", .arg = "N", .kind = FSDP_CLI_INT, .offset = AT(ranks_per_gpu), .least = 1,
     .most = MOST, .help = "let N ranks of a node share a GPU, for tests (NCCL over sockets)"},
    {"reorder", .offset = AT(reorder),
     .help = "number the ranks of a node consecutively, whatever srun's distribution"},
    {"timeout", .arg = "S", .kind = FSDP_CLI_ABOVE, .offset = AT(timeout_s), .least = 0,
     .most = 86400, .help = "fail if the ranks have not met after S seconds (default: 60)"},
    {.help = NULL}};

static const struct fsdp_cli_option run_rows[] = {
    {"prefix-output", .offset = AT(prefix_output),
     .help = "begin each line of ranks other than 0 with \"[rank R]\""},
    {"requeue", .offset = AT(requeue),
     .help = "in a Slurm job that ends with 75 or 76: requeue it (scontrol requeue)"},
    {"trace", .arg = "FILE", .kind = FSDP_CLI_FILE, .offset = AT(trace),
     .help = "record some steps of all ranks for ui.perfetto.dev (log.trace=FILE)"},
    {"verbose", 'v', .offset = AT(verbose),
     .help = "print the tables of a run, and how the ranks meet"},
    {.help = NULL}};

static const struct fsdp_cli_option instead_rows[] = {
    {"check", .offset = AT(check),
     .help = "check within seconds whether the nodes are fit: clocks, limits, checkpoint folder, "
             "collectives inside and between nodes. CONFIG.yaml is optional. Unfit nodes: exit "
             "status 1 and a line \"bad nodes: n1,n3\""},
    {"print-config", .offset = AT(print_config),
     .help = "print each key with its value, default and meaning"},
    {"print-metrics", .offset = AT(print_metrics),
     .help = "print all metrics of a step, with units"},
    {"dump-schedule", .arg = "[=FILE]", .kind = FSDP_CLI_OWN, .parse = take_schedule,
     .is_file = true,
     .help = "print the operations of a step on -n N ranks as --nodes K. A FILE that ends in .json "
             "is a trace for ui.perfetto.dev"},
    {"from", .arg = "FILE", .kind = FSDP_CLI_FILE, .offset = AT(from),
     .help = "convert the configuration FILE of accelerate (YAML) or DeepSpeed (JSON), print the "
             "result, and list the keys without a counterpart"},
    {NULL, 'o', "CONFIG.yaml", FSDP_CLI_FILE, AT(out),
     .help = "with --from: write it to a new file"},
    {.help = NULL}};

static const struct fsdp_cli_option sbatch_rows[] = {
    {"sbatch", .arg = "[=FILE]", .kind = FSDP_CLI_OWN, .offset = AT(sbatch), .parse = take_script,
     .is_file = true,
     .help = "write a Slurm batch script for this cluster (default: the configuration's name with "
             ".sbatch; -: standard output), for the number of nodes in --nodes. Asks sinfo and "
             "scontrol, and refuses a request that the partition cannot meet"},
    {"submit", .offset = AT(sbatch.submit), .help = "with --sbatch: submit the script, too"},
    {"overwrite", .offset = AT(sbatch.overwrite),
     .help = "with --sbatch: replace a script of --sbatch that was edited"},
    {"ntasks-per-node", .arg = "N", .kind = FSDP_CLI_INT, .offset = AT(sbatch.ntasks_per_node),
     .least = 1, .most = MOST,
     .help = "ranks on a node (default: one for each GPU, or for each socket)"},
    {"gpus-per-node", .arg = "N", .kind = FSDP_CLI_INT, .offset = AT(sbatch.gpus_per_node),
     .least = 0, .most = MOST, .help = "GPUs on a node (default: all; 0: train on CPUs)"},
    {"partition", .arg = "P", .kind = FSDP_CLI_OWN, .offset = AT(sbatch.partition),
     .parse = take_word, .help = "the partition (default: Slurm's)"},
    {"account", .arg = "A", .kind = FSDP_CLI_OWN, .offset = AT(sbatch.account), .parse = take_word,
     .help = "the account that is charged (default: Slurm's)"},
    {"time", .arg = "T", .kind = FSDP_CLI_OWN, .offset = AT(sbatch.time), .parse = take_word,
     .help = "time limit, as sbatch takes it (default: a day, or the partition's limit)"},
    {"output", .arg = "FILE", .kind = FSDP_CLI_OWN, .offset = AT(sbatch.output), .parse = take_word,
     .is_file = true, .help = "the job's output, a pattern of sbatch (default: logs/%x-%j.out)"},
    {.help = NULL}};

static const struct fsdp_cli_group groups[] = {{"Ranks", rank_rows},
                                               {"The run", run_rows},
                                               {"A batch script for Slurm", sbatch_rows},
                                               {"Instead of training", instead_rows},
                                               {NULL, NULL}};

static const struct fsdp_cli_note environment[] = {
    {"BOOT_METHODS", "how ranks find each other, in order: pmix,slurm,local,single"},
    {"BOOT_INTERFACE", "prefixes of network interfaces that other nodes can reach"},
    {"BOOT_KEY_FILE", "under srun without PMIx, and with --nnodes: the user's key, which all "
                      "nodes must have (~/.config/fsdp/key, created on first use)"},
    {"BOOT_PORT", "under srun without PMIx: the first of four ports for rank 0"},
    {NULL, NULL}};

static const struct fsdp_cli_note exits[] = {
    {"0", "done"},
    {"1", "failed"},
    {"2", "wrong usage or configuration"},
    {"75", "stopped on request, with a checkpoint: requeue the job"},
    {"76", "a rank was lost: requeuing may help"},
    {"126, 127", "PROGRAM cannot be run, or does not exist"},
    {"130, 143", "ended by a second request"},
    {"other", "the status of PROGRAM; 128 + N if signal N ended it"},
    {NULL, NULL}};

const struct fsdp_cli_program launch_options = {
    .name = "fsdp-launch",
    .usage = "[options] CONFIG.yaml [section.key=value ...]\n"
             "--check [options] [CONFIG.yaml [section.key=value ...]]\n"
             "[options] -- PROGRAM [ARGS ...]\n"
             "--from FILE [-o CONFIG.yaml]",
    .purpose = "Trains a model as CONFIG.yaml describes, or runs a program, on several ranks. "
               "Under srun (--mpi=pmix or none) and mpirun, each started task is a rank. "
               "Otherwise -n starts N ranks on this machine (default: 1).",
    .groups = groups,
    .notes =
        "PROGRAM gets RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, NODE_RANK, MASTER_ADDR "
        "and MASTER_PORT.\n"
        "\nCtrl-C, SIGTERM or SIGHUP asks all ranks to save and exit, however long that takes; a "
        "second one ends them at once. SIGUSR1 and SIGUSR2 are passed on; ranks that train "
        "treat them as a first SIGTERM.",
    .examples = "fsdp-launch -n 4 run.yaml train.steps=100\n"
                "srun --mpi=pmix fsdp-launch --requeue run.yaml\n"
                "fsdp-launch --sbatch run.yaml --nodes 8 --submit",
    .environment = environment,
    .exits = exits,
    .most = INT_MAX,
    .starts_program = true,
};
