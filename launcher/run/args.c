/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "impl.h"

static const char help_text[] =
    "Usage: fsdp-launch [options] CONFIG.yaml [section.key=value ...]\n"
    "       fsdp-launch --check [options] [CONFIG.yaml [section.key=value ...]]\n"
    "       fsdp-launch [options] -- PROGRAM [ARGS ...]\n"
    "\n"
    "Trains as CONFIG.yaml says, or runs a program, on several ranks. Under srun\n"
    "(--mpi=pmix or none) and mpirun, each started task is a rank. Otherwise -n\n"
    "starts N ranks on this machine (default: 1).\n"
    "\n"
    "  -n N             start N ranks here\n"
    "  --ranks-per-task N\n"
    "                   under srun or mpirun: each task starts N ranks and is not a\n"
    "                   rank itself (for one task per node)\n"
    "  --nodes K        emulate K nodes of N/K ranks each\n"
    "  --sbatch[=FILE]  write a Slurm batch script for this cluster (default: the\n"
    "                   configuration's name with .sbatch; -: standard output). Asks\n"
    "                   sinfo and scontrol, refuses what the partition cannot give\n"
    "    --submit       and submit it with sbatch\n"
    "    --nodes K      on K nodes (1)\n"
    "    --ntasks-per-node N\n"
    "                   ranks on a node (one for each GPU, or for each socket)\n"
    "    --gpus-per-node N\n"
    "                   GPUs on a node (all; 0: train on CPUs)\n"
    "    --partition P, --account A\n"
    "                   where, and for whom (Slurm's defaults)\n"
    "    --time T       how long, as sbatch takes it (a day, or the partition's\n"
    "                   limit)\n"
    "    --output FILE  the job's output, a pattern of sbatch (logs/%x-%j.out)\n"
    "  --nnodes N --node-rank R --master-addr HOST [--master-port P]\n"
    "                   this is node R of N that you start by hand, each with its\n"
    "                   own -n; node 0 runs on HOST (port: 29500). The defaults of\n"
    "                   the last three are NODE_RANK, MASTER_ADDR and MASTER_PORT\n"
    "  --ranks-per-gpu N\n"
    "                   let N ranks of a node share a GPU, for tests (NCCL over\n"
    "                   sockets)\n"
    "  --prefix-output  begin each line of ranks other than 0 with \"[rank R] \"\n"
    "  --reorder        number the ranks of a node consecutively, whatever srun's\n"
    "                   distribution\n"
    "  --requeue        in a Slurm job that ends with 75 or 76: requeue it (scontrol\n"
    "                   requeue)\n"
    "  --timeout S      fail if the ranks have not met after S seconds (60)\n"
    "  --check          do not train. Check within seconds whether the nodes are fit:\n"
    "                   clocks, limits, checkpoint folder, collectives inside and\n"
    "                   between nodes. CONFIG.yaml is optional. Unfit nodes: exit\n"
    "                   status 1 and a line \"bad nodes: n1,n3\"\n"
    "  --print-config   print each key with its value, default and meaning, and exit\n"
    "  --print-metrics  print what is reported of each step, and exit\n"
    "  --dump-schedule[=FILE]\n"
    "                   print the operations of a step on -n N ranks as --nodes K,\n"
    "                   and exit. A FILE that ends in .json is a trace for\n"
    "                   ui.perfetto.dev\n"
    "  --trace FILE     record some steps of all ranks as such a trace\n"
    "                   (log.trace=FILE)\n"
    "  -v, --verbose    print the tables of a run, and how the ranks meet\n"
    "  --help           print this help\n"
    "  --version        print the version\n"
    "\n"
    "PROGRAM gets RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, NODE_RANK,\n"
    "MASTER_ADDR and MASTER_PORT.\n"
    "\n"
    "Ctrl-C or SIGTERM asks all ranks to save and exit, however long that takes; a\n"
    "second one ends them at once. SIGUSR1 and SIGUSR2 are passed on; ranks that\n"
    "train treat them as a first SIGTERM.\n"
    "\n"
    "Environment:\n"
    "  BOOT_METHODS     how ranks find each other, in order: pmix,slurm,local,single\n"
    "  BOOT_INTERFACE   prefixes of network interfaces that other nodes can reach\n"
    "  BOOT_KEY_FILE    under srun without PMIx, and with --nnodes: the user's key,\n"
    "                   which all nodes must have (~/.config/fsdp/key, created on\n"
    "                   first use)\n"
    "  BOOT_PORT        under srun without PMIx: the first of four ports for rank 0\n"
    "\n"
    "Exit status:\n"
    "  0                done\n"
    "  1                failed\n"
    "  2                wrong usage or configuration\n"
    "  75               stopped on request, with a checkpoint: requeue the job\n"
    "  76               a rank was lost: requeuing may help\n"
    "  126, 127         PROGRAM cannot be run, or does not exist\n"
    "  130, 143         ended by a second request\n"
    "  other            the status of PROGRAM; 128 + N if signal N ended it\n";

void launch_print_help(void)
{
    fputs(help_text, stdout);
}

enum { SAY_MS = 2000 };

void launch_say(const char *fmt, ...)
{
    char text[2 * FSDP_ERR_TEXT_NBYTES] = "fsdp-launch: ";
    size_t len = strlen(text);
    va_list ap;
    va_start(ap, fmt);
    int more = vsnprintf(text + len, sizeof text - len - 1, fmt, ap);
    va_end(ap);
    len += more < 0 ? 0 : (size_t)more;
    len = len < sizeof text - 1 ? len : sizeof text - 2;
    text[len++] = '\n';
    fflush(stderr);
    /* A reader that has stalled must not keep the job from its end. */
    struct pollfd pf = {STDERR_FILENO, POLLOUT, 0};
    if (poll(&pf, 1, SAY_MS) <= 0)
        return;
    ssize_t done = write(STDERR_FILENO, text, len);
    (void)done;
}

static int bad(const char *fmt, ...) FSDP_PRINTF(1, 2);
static int bad(const char *fmt, ...)
{
    char text[FSDP_ERR_TEXT_NBYTES];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    launch_say("%s (fsdp-launch --help shows the usage)", text);
    return LAUNCH_USAGE;
}

/* More ranks than this on one machine are a slip of the finger. */
static int most_ranks(void)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    return cores * 8 > 64 ? (int)(cores * 8) : 64;
}

static int parse_count(int *out, const char *option, const char *text)
{
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (!*text || *end || errno || value < 1 || value > 1 << 20)
        return bad("%s %s: expected a number from 1 to %d", option, text, 1 << 20);
    *out = (int)value;
    return 0;
}

static int parse_node_rank(int *out, const char *text)
{
    return strcmp(text, "0") == 0 ? (*out = 0) : parse_count(out, "--node-rank", text);
}

static int parse_seconds(double *out, const char *option, const char *text)
{
    char *end;
    double value = strtod(text, &end);
    if (!*text || *end || !(value > 0) || value > 86400)
        return bad("%s %s: expected seconds above 0 and up to 86400", option, text);
    *out = value;
    return 0;
}

/* ---- options --------------------------------------------------------------------------------- */

enum {
    PRINT_CONFIG = 256,
    PRINT_METRICS,
    PREFIX_OUTPUT,
    REQUEUE,
    CHECK,
    REORDER,
    VERSION,
    DUMP_SCHEDULE,
    TRACE,
    NODES,
    RANKS_PER_TASK,
    RANKS_PER_GPU,
    NNODES,
    NODE_RANK,
    MASTER_ADDR,
    MASTER_PORT,
    TIMEOUT,
    SBATCH,
    SUBMIT,
    PARTITION,
    ACCOUNT,
    TIME,
    OUTPUT,
    NTASKS_PER_NODE,
    GPUS_PER_NODE
};

static const struct option options[] = {
    {"verbose", no_argument, NULL, 'v'},
    {"help", no_argument, NULL, 'h'},
    {"version", no_argument, NULL, VERSION},
    {"print-config", no_argument, NULL, PRINT_CONFIG},
    {"print-metrics", no_argument, NULL, PRINT_METRICS},
    {"prefix-output", no_argument, NULL, PREFIX_OUTPUT},
    {"requeue", no_argument, NULL, REQUEUE},
    {"check", no_argument, NULL, CHECK},
    {"reorder", no_argument, NULL, REORDER},
    {"dump-schedule", optional_argument, NULL, DUMP_SCHEDULE},
    {"trace", required_argument, NULL, TRACE},
    {"nodes", required_argument, NULL, NODES},
    {"ranks-per-task", required_argument, NULL, RANKS_PER_TASK},
    {"ranks-per-gpu", required_argument, NULL, RANKS_PER_GPU},
    {"nnodes", required_argument, NULL, NNODES},
    {"node-rank", required_argument, NULL, NODE_RANK},
    {"master-addr", required_argument, NULL, MASTER_ADDR},
    {"master-port", required_argument, NULL, MASTER_PORT},
    {"timeout", required_argument, NULL, TIMEOUT},
    {"sbatch", optional_argument, NULL, SBATCH},
    {"submit", no_argument, NULL, SUBMIT},
    {"partition", required_argument, NULL, PARTITION},
    {"account", required_argument, NULL, ACCOUNT},
    {"time", required_argument, NULL, TIME},
    {"output", required_argument, NULL, OUTPUT},
    {"ntasks-per-node", required_argument, NULL, NTASKS_PER_NODE},
    {"gpus-per-node", required_argument, NULL, GPUS_PER_NODE},
    {NULL, 0, NULL, 0},
};

/* The option that was probably meant: one that begins so, or is a few typing errors away. */
static const char *nearest(const char *arg)
{
    char name[64];
    const char *best = NULL;
    snprintf(name, sizeof name, "%.*s", (int)strcspn(arg + 2, "="), arg + 2);
    int least = (int)strlen(name) / 4 + 2;

    for (const struct option *o = options; o->name && *name; o++) {
        int d = strncmp(o->name, name, strlen(name)) ? fsdp_text_distance(name, o->name) : 0;
        if (d < least) {
            best = o->name;
            least = d;
        }
    }
    return best;
}

static int unknown(const char *arg)
{
    const char *near = arg[1] == '-' ? nearest(arg) : NULL;
    return near ? bad("unknown option %s; did you mean --%s?", arg, near)
                : bad("unknown option %s", arg);
}

static const char *name_of(int option)
{
    const struct option *o = options;
    while (o->name && o->val != option)
        o++;
    return o->name ? o->name : "?";
}

static int missing(int option)
{
    switch (option) {
    case PARTITION:
    case ACCOUNT:
    case TIME:
    case OUTPUT:
        return bad("--%s needs a value", name_of(option));
    case 'n':
        return bad("-n needs a number of ranks");
    case TRACE:
        return bad("--trace needs a file");
    case TIMEOUT:
        return bad("--timeout needs seconds");
    case MASTER_ADDR:
        return bad("--master-addr needs the name or address of node 0");
    case NNODES:
        return bad("--nnodes needs a number");
    case NODE_RANK:
        return bad("--node-rank needs a number");
    case MASTER_PORT:
        return bad("--master-port needs a number");
    default:
        return bad("--%s needs a number", name_of(option));
    }
}

static int take_flag(struct launch_args *out, int option)
{
    bool *to = option == 'v'             ? &out->verbose
               : option == 'h'           ? &out->help
               : option == VERSION       ? &out->version
               : option == PRINT_CONFIG  ? &out->print_config
               : option == PRINT_METRICS ? &out->print_metrics
               : option == PREFIX_OUTPUT ? &out->prefix_output
               : option == REQUEUE       ? &out->requeue
               : option == CHECK         ? &out->check
                                         : &out->reorder;
    *to = true;
    return 0;
}

/* Those of --sbatch. */
static int take_sbatch(struct sbatch_request *out, int option, const char *value)
{
    const char **word = option == PARTITION ? &out->partition
                        : option == ACCOUNT ? &out->account
                        : option == TIME    ? &out->time
                                            : &out->output;

    switch (option) {
    case SBATCH:
        out->wanted = true;
        out->file = value;
        return value && !*value ? bad("--sbatch=: a file is missing") : 0;
    case SUBMIT:
        out->submit = true;
        return 0;
    case NTASKS_PER_NODE:
        return parse_count(&out->ntasks_per_node, "--ntasks-per-node", value);
    case GPUS_PER_NODE:
        out->gpus_per_node = 0;
        return strcmp(value, "0") ? parse_count(&out->gpus_per_node, "--gpus-per-node", value) : 0;
    default:
        *word = value;
        return *value ? 0 : missing(option);
    }
}

static int take_option(struct launch_args *out, int option, const char *value)
{
    if (option >= SBATCH)
        return take_sbatch(&out->sbatch, option, value);
    switch (option) {
    case 'n':
        return parse_count(&out->nranks, "-n", value);
    case NODES:
        return parse_count(&out->nnodes, "--nodes", value);
    case RANKS_PER_TASK:
        return parse_count(&out->ranks_per_task, "--ranks-per-task", value);
    case RANKS_PER_GPU:
        return parse_count(&out->ranks_per_gpu, "--ranks-per-gpu", value);
    case NNODES:
        return parse_count(&out->by_hand, "--nnodes", value);
    case NODE_RANK:
        return parse_node_rank(&out->node_rank, value);
    case MASTER_ADDR:
        out->master_addr = value;
        return *value ? 0 : missing(MASTER_ADDR);
    case MASTER_PORT:
        return parse_count(&out->master_port, "--master-port", value);
    case TIMEOUT:
        return parse_seconds(&out->timeout_s, "--timeout", value);
    case TRACE:
        out->trace = value;
        return *value ? 0 : missing(TRACE);
    case DUMP_SCHEDULE:
        out->dump_schedule = true;
        out->dump_file = value;
        return value && !*value ? bad("--dump-schedule=: a file is missing") : 0;
    default:
        return take_flag(out, option);
    }
}

/* getopt_long also takes the beginning of a long option's name. */
static bool abbreviated(const char *arg, int index)
{
    size_t len = index < 0 ? 0 : strlen(options[index].name);
    return index >= 0 && (strncmp(arg + 2, options[index].name, len) != 0 ||
                          (arg[2 + len] && arg[2 + len] != '='));
}

/* Options may stand between the words, up to "--". Moves the words to argv[1 ...]; *nwords is their
 * number. */
static int take_all(struct launch_args *out, int argc, char **argv, int *nwords)
{
    opterr = 0;
    optind = 0; /* from the beginning, whoever has used it before */
    for (*nwords = 0;;) {
        const int at = optind ? optind : 1;
        const char *arg = at < argc ? argv[at] : NULL;
        int index = -1, code = 0;
        int option = getopt_long(argc, argv, "+:n:vh", options, &index);
        if (option == -1 && !arg)
            return 0;
        if (option == -1 && !strcmp(arg, "--")) {
            out->program = argv + optind;
            return 0;
        }
        if (option == -1)
            argv[1 + (*nwords)++] = argv[optind++]; /* never ahead of the next */
        else if (option == '?' || abbreviated(arg, index))
            code = unknown(arg);
        else
            code = option == ':' ? missing(optopt) : take_option(out, option, optarg);
        if (code)
            return code;
    }
}

static int check_overrides(const struct launch_args *args)
{
    for (int i = 0; i < args->noverrides; i++) {
        const char *eq = strchr(args->overrides[i], '=');
        if (!eq || eq == args->overrides[i])
            return bad("'%s' after the configuration: expected section.key=value",
                       args->overrides[i]);
    }
    return 0;
}

static int check_counts(const struct launch_args *args)
{
    if (args->nranks > most_ranks() && !args->dump_schedule)
        return bad("-n %d: this machine has %ld cores, at most %d ranks make sense", args->nranks,
                   sysconf(_SC_NPROCESSORS_ONLN), most_ranks());
    if (args->ranks_per_task && args->nranks)
        return bad("-n says how many ranks there are here, --ranks-per-task how many each task "
                   "starts; give one of them");
    if (args->ranks_per_task > most_ranks())
        return bad("--ranks-per-task %d: this machine has %ld cores, at most %d ranks make sense",
                   args->ranks_per_task, sysconf(_SC_NPROCESSORS_ONLN), most_ranks());
    if (args->by_hand && args->ranks_per_task)
        return bad("with --nnodes, -n says how many ranks this node starts; leave out "
                   "--ranks-per-task");
    if (args->by_hand && args->nnodes > 1)
        return bad("--nodes emulates nodes on one machine, --nnodes counts real ones; give one of "
                   "them");
    if (!args->by_hand && (args->node_rank >= 0 || args->master_addr || args->master_port))
        return bad("%s belongs to --nnodes, which is missing", args->node_rank >= 0 ? "--node-rank"
                                                               : args->master_addr
                                                                   ? "--master-addr"
                                                                   : "--master-port");
    if (args->nnodes > 1 && !args->nranks && !args->sbatch.wanted)
        return bad("--nodes %d presents the ranks of -n as nodes; -n is missing, or "
                   "--sbatch for a job on %d nodes",
                   args->nnodes, args->nnodes);
    if (args->nranks && args->nnodes > args->nranks)
        return bad("--nodes %d: more nodes than the %d ranks of -n", args->nnodes, args->nranks);
    if (args->nranks && args->nranks % args->nnodes != 0)
        return bad("--nodes %d does not divide the %d ranks of -n", args->nnodes, args->nranks);
    return 0;
}

static int check_what(const struct launch_args *args)
{
    if (args->program && !args->program[0])
        return bad("no program after --");
    if (args->config && args->program)
        return bad("a configuration (%s) and a program (%s) at once", args->config,
                   args->program[0]);
    if (args->program && args->print_config)
        return bad("--print-config belongs to a configuration, not to a program");
    if (args->program && (args->dump_schedule || args->trace))
        return bad("%s belongs to a configuration, not to a program",
                   args->dump_schedule ? "--dump-schedule" : "--trace");
    if (args->program && args->ranks_per_gpu)
        return bad("--ranks-per-gpu belongs to a configuration, not to a program");
    if (args->program && args->check)
        return bad("--check starts no program");
    if (!args->config && !args->program && !args->print_config && !args->check)
        return bad("nothing to run: give a configuration or -- PROGRAM");
    return 0;
}

int launch_args_parse(struct launch_args *out, int argc, char **argv)
{
    int nwords, code;

    *out = (struct launch_args){
        .nnodes = 1, .node_rank = -1, .timeout_s = 60, .sbatch = SBATCH_REQUEST_INIT};
    if ((code = take_all(out, argc, argv, &nwords)))
        return code;
    if (out->help || out->version || out->print_metrics)
        return 0;
    char **words = argv + 1;
    if (nwords && !(out->print_config && strchr(words[0], '='))) {
        out->config = words[0];
        words++;
        nwords--;
    }
    out->overrides = words;
    out->noverrides = nwords;
    if (out->config && strchr(out->config, '=') && access(out->config, F_OK))
        return bad("'%s' comes where the configuration is expected", out->config);
    out->sbatch.nodes = out->nnodes;
    if ((code = launch_sbatch_check(out)) || (code = check_what(out)) ||
        (code = check_overrides(out)))
        return code;
    return check_counts(out);
}
