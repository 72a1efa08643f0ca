/* SPDX-License-Identifier: Apache-2.0 */
/* fsdp-plan: what a run would take, before anyone queues for it. */
#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "config/config.h"
#include "plan/search/advice.h"
#include "output.h"
#include "plan.h"

/* ---- settings -------------------------------------------------------------------------------- */

/* "2T", "300B", "1.5e9" */
static int take_count(void *to, const char *text, struct fsdp_err *err)
{
    static const struct {
        const char *letter;
        double factor;
    } scales[] = {{"k", 1e3}, {"M", 1e6}, {"B", 1e9}, {"G", 1e9}, {"T", 1e12}, {"", 1}};
    char *end;
    const double value = strtod(text, &end);

    for (size_t i = 0; end != text && i < sizeof scales / sizeof scales[0]; i++)
        if (!strcasecmp(end, scales[i].letter) && value > 0 && value * scales[i].factor < 1e18) {
            *(double *)to = value * scales[i].factor;
            return FSDP_OK;
        }
    return fsdp_err_set(err, FSDP_EINVAL, "'%s' is not a number of tokens such as 300B or 2T",
                        text);
}

static int take_text(void *to, const char *text, struct fsdp_err *err)
{
    struct plan_texts *texts = to;

    if (texts->ntexts == PLAN_MAX_WHAT_IFS)
        return fsdp_err_set(err, FSDP_EINVAL, "more than %d", PLAN_MAX_WHAT_IFS);
    texts->text[texts->ntexts++] = text;
    return FSDP_OK;
}

/* "tp=2,pp=4" */
static int take_foreign(void *to, const char *text, struct fsdp_err *err)
{
    struct foreign_ask ask = {1, 1, 1, 1};
    const struct {
        const char *name;
        int *to;
    } keys[] = {{"tp=", &ask.tp}, {"pp=", &ask.pp}, {"cp=", &ask.cp}, {"vpp=", &ask.vpp}};
    const char *at = text;

    do {
        size_t key = 0;
        char *end = NULL;
        while (key < 4 && strncmp(at, keys[key].name, strlen(keys[key].name)))
            key++;
        const long value = key < 4 ? strtol(at + strlen(keys[key].name), &end, 10) : 0;
        if (value < 1 || value > 1 << 16 || (*end && *end != ','))
            return fsdp_err_set(err, FSDP_EINVAL,
                                "'%s' is not such as tp=2,pp=4: tp, pp, cp and vpp, each a whole "
                                "number of at least 1",
                                text);
        *keys[key].to = (int)value;
        at = end + 1;
    } while (at[-1]);
    *(struct foreign_ask *)to = ask;
    return FSDP_OK;
}

static const char *const goals[] = {"time", "cost", "gpus", NULL};
static const char *const whens[] = {"auto", "always", "never", NULL};

#define AT(field) offsetof(struct plan_settings, field)
static const struct fsdp_cli_option cluster_rows[] = {
    {"gpus", 'n', "N", FSDP_CLI_INT, AT(ngpus), 1, 1 << 20,
     .help = "number of GPUs, one rank each (default: those of the cluster, or of a node)"},
    {"nodes", .arg = "N", .kind = FSDP_CLI_INT, .offset = AT(nnodes), .least = 1, .most = 1 << 20,
     .help = "the same in nodes"},
    {"gpu", .arg = "KIND", .kind = FSDP_CLI_TEXT, .offset = AT(gpu),
     .help = "a100, a100-40, h100, h100-500w, h200, gh200, b200, or cpu: this machine (default: "
             "h100)"},
    {"node-size", .arg = "N", .kind = FSDP_CLI_INT, .offset = AT(node_ngpus), .least = 1,
     .most = 1024, .help = "GPUs of a node (default: 8)"},
    {"net", .arg = "CARDS", .kind = FSDP_CLI_TEXT, .offset = AT(net),
     .help = "network cards of a node: 400Gbx8 is 8 of 400 Gbit/s; none (default: 400Gbx8)"},
    {"cluster", .arg = "FILE", .kind = FSDP_CLI_FILE, .offset = AT(cluster),
     .help = "all of this, failures, prices and measured rates from a cluster.yaml"},
    {"what-if", .arg = "KEY=VALUE", .kind = FSDP_CLI_OWN, .offset = AT(what_if), .parse = take_text,
     .help = "change a key of the cluster, such as net=800Gbx8; repeat it for more"},
    {.help = NULL}};
static const struct fsdp_cli_option run_rows[] = {
    {"model", .arg = "DIR", .kind = FSDP_CLI_FILE, .offset = AT(model),
     .help = "plan for this folder's config.json instead of a run.yaml; no weights are needed"},
    {"seq", .arg = "N", .kind = FSDP_CLI_INT, .offset = AT(seq_len), .least = 1, .most = 1 << 24,
     .help = "with --model: tokens of a row (default: 4096)"},
    {"batch", .arg = "TOKENS", .kind = FSDP_CLI_OWN, .offset = AT(batch_tokens),
     .parse = take_count, .help = "with --model: tokens of a step (default: 4M)"},
    {"tokens", .arg = "TOKENS", .kind = FSDP_CLI_OWN, .offset = AT(tokens), .parse = take_count,
     .help = "tokens to train on, such as 2T (default: what train.steps makes)"},
    {"foreign", .arg = "PARALLELISM", .kind = FSDP_CLI_OWN, .offset = AT(foreign),
     .parse = take_foreign,
     .help = "price the same run with parallelism that libfsdp does not do, as Megatron-LM could "
             "do it: tp=2,pp=4 (tensor, pipeline), also cp (context) and vpp (chunks a stage)"},
    {.help = NULL}};
static const struct fsdp_cli_option search_rows[] = {
    {"search", .arg = NULL, .kind = FSDP_CLI_FLAG, .offset = AT(search),
     .help = "look for the best settings, and write them as a run.yaml"},
    {"goal", .arg = "WHAT", .kind = FSDP_CLI_WORD, .offset = AT(goal), .words = goals,
     .help = "time of a token, cost in GPU-hours, or the number of gpus; the last two try half "
             "the GPUs, a quarter and so on, too (default: time)"},
    {"keep-numerics", .arg = NULL, .kind = FSDP_CLI_FLAG, .offset = AT(keep_numerics),
     .help = "leave out settings that change arithmetic"},
    {"max-global-batch", .arg = "ROWS", .kind = FSDP_CLI_INT, .offset = AT(most_rows), .least = 1,
     .most = 1 << 30, .help = "a step may have up to so many rows (default: those of the run)"},
    {"output", 'o', "FILE", FSDP_CLI_FILE, AT(output),
     .help = "the run.yaml to write; - is standard output (default: best.yaml); the file of "
             "--against, --calibrate or --measure"},
    {"overwrite", .arg = NULL, .kind = FSDP_CLI_FLAG, .offset = AT(overwrite),
     .help = "replace it where it exists"},
    {.help = NULL}};
static const char *const batches[] = {"gpu", "constant", NULL};
static const struct fsdp_cli_option scale_rows[] = {
    {"scale", .arg = "FROM..TO", .kind = FSDP_CLI_OWN, .offset = AT(scale),
     .parse = plan_take_range,
     .help = "a row for each power of two of GPUs, such as 8..16384, and strategies next to each "
             "other"},
    {"scale-batch", .arg = "WHAT", .kind = FSDP_CLI_WORD, .offset = AT(scale_batch),
     .words = batches,
     .help = "what stays: the tokens of a gpu and step (as with --gpus N, else a micro-batch), or "
             "constant: the global batch (default: gpu)"},
    {"chart", .arg = "FILE", .kind = FSDP_CLI_FILE, .offset = AT(chart),
     .help = "draw FILE.svg or FILE.png: with --scale the rows, else memory and time under other "
             "settings"},
    {.help = NULL}};
static const struct fsdp_cli_option real_rows[] = {
    {"against", .arg = "TRACE", .kind = FSDP_CLI_FILE, .offset = AT(against),
     .help = "compare the plan with this trace of the run (fsdp-launch --trace=FILE), operation "
             "by operation; -o FILE puts a step of both into one trace"},
    {"calibrate", .arg = "TRACE", .kind = FSDP_CLI_FILE, .offset = AT(calibrate),
     .help = "correct the clock by this trace, and write a cluster.yaml (default: cluster.yaml)"},
    {"measure", .arg = NULL, .kind = FSDP_CLI_FLAG, .offset = AT(measure),
     .help = "measure what the run computes and sends, on -n ranks of this machine or on those "
             "that srun or fsdp-launch started, and write a cluster.yaml with its tables"},
    {"grid", .arg = NULL, .kind = FSDP_CLI_FLAG, .offset = AT(grid),
     .help = "with --measure: measure sizes on a grid, too, for plans of other models"},
    {.help = NULL}};
static const struct fsdp_cli_option output_rows[] = {
    {"json", .arg = "FILE", .kind = FSDP_CLI_FILE, .offset = AT(json),
     .help = "write the answer as JSON; - is standard output"},
    {"trace", .arg = "FILE", .kind = FSDP_CLI_FILE, .offset = AT(trace),
     .help = "write the planned step as a Chrome trace, for ui.perfetto.dev"},
    {"advice", .arg = "WHEN", .kind = FSDP_CLI_WORD, .offset = AT(advice), .words = whens,
     .help = "plan every setting that could help, too: auto (on a terminal), always or never "
             "(default: auto)"},
    {"verbose", 'v', NULL, FSDP_CLI_FLAG, AT(verbose),
     .help = "print each number of the clock and its origin"},
    {.help = NULL}};
static const struct fsdp_cli_group groups[] = {{"The cluster", cluster_rows},
                                               {"The run", run_rows},
                                               {"Searching", search_rows},
                                               {"More GPUs, pictures", scale_rows},
                                               {"A real run", real_rows},
                                               {"Output", output_rows},
                                               {NULL, NULL}};
static const struct fsdp_cli_note exits[] = {
    {"0", "planned"},
    {"1", "planned, and it does not fit; or a file cannot be read or written"},
    {"2", "wrong usage, or a run or cluster that cannot be"},
    {NULL, NULL}};

static struct fsdp_cli_program program = {
    .name = "fsdp-plan",
    .usage = "RUN.yaml [section.key=value...] [options]\n"
             "--model DIR [section.key=value...] [options]",
    .purpose =
        "Tells what a run takes on a cluster: time of a step, memory of a GPU, what the network "
        "carries, and time, energy and money until its end. It plans with the run's own list of "
        "operations and its own plan of memory. It needs no GPU and starts nothing.",
    .groups = groups,
    .examples = "fsdp-plan run.yaml --gpus 64 --gpu h100 --net 400Gbx8\n"
                "fsdp-plan run.yaml --cluster cluster.yaml fsdp.two_level=true\n"
                "fsdp-plan --model llama-70b --seq 8192 --tokens 2T --nodes 32",
    .exits = exits,
    .least = 0,
    .most = PLAN_MAX_OVERRIDES,
    .operands = "a run.yaml and settings",
};

/* ---- what it does ---------------------------------------------------------------------------- */

struct answered {
    const struct answer *answer;
    const struct question *question;
};

static int write_json(FILE *to, const void *ctx, struct fsdp_err *err)
{
    const struct answered *a = ctx;
    return answer_json(a->answer, a->question, to, err);
}

static int write_trace(FILE *to, const void *ctx, struct fsdp_err *err)
{
    const struct answered *a = ctx;
    return answer_trace(a->question, to, err);
}

/* Whoever asks for it gets all of it. */
static int advise(const struct answer *a, const struct question *question, bool asked,
                  struct fsdp_err *err)
{
    enum { MOST_OF_GROUP = 5, MOST_SECONDS = 4 };
    struct question plain = *question;
    const struct advice_opts opts = {.seconds = asked ? 0 : MOST_SECONDS};
    struct advice *advice = fsdp_alloc(1, sizeof *advice, "advice", err);

    if (!advice)
        return FSDP_ENOMEM;
    plain.foreign.tp = 0;
    advice_make(advice, a, &plain, &opts);
    advice_print(advice, a, MOST_OF_GROUP, stdout);
    fsdp_free(advice);
    return FSDP_OK;
}

enum { AUTO, ALWAYS };

static bool wants_advice(const struct plan_settings *set)
{
    if (set->json && !strcmp(set->json, "-"))
        return false; /* JSON is alone there */
    return set->advice == ALWAYS || (set->advice == AUTO && isatty(STDOUT_FILENO));
}

static int check_printed(struct fsdp_err *err)
{
    errno = 0;
    if (!fflush(stdout) && !ferror(stdout))
        return FSDP_OK;
    fsdp_err_sys(err, errno ? errno : EIO, "cannot write standard output");
    return FSDP_EIO;
}

static int answer_question(const struct plan_asked *asked, const struct plan_settings *set,
                           bool *fits, struct fsdp_err *err)
{
    struct answer a;
    struct answered answered = {&a, &asked->question};

    FSDP_TRY(answer_make(&a, &asked->question, err));
    *fits = a.fits;
    if (!set->json || strcmp(set->json, "-") != 0)
        answer_print(&a, &asked->question, set->verbose, stdout);
    FSDP_TRY(check_printed(err));
    if (set->json)
        FSDP_TRY(output_write(set->json, write_json, &answered, err));
    if (set->trace)
        FSDP_TRY(output_write(set->trace, write_trace, &answered, err));
    if (set->chart)
        FSDP_TRY(plan_chart(asked, set, err));
    if (!wants_advice(set))
        return FSDP_OK;
    FSDP_TRY(advise(&a, &asked->question, set->advice == ALWAYS, err));
    return check_printed(err);
}

/* Options that each make something else of the run. */
/* Options that mean nothing together are mistakes. */
static int check_search(const struct plan_settings *set, struct fsdp_err *err)
{
    const char *name = set->keep_numerics ? "keep-numerics"
                       : set->most_rows   ? "max-global-batch"
                       : set->goal        ? "goal"
                                          : NULL;

    if (name && !set->search)
        return fsdp_err_set(err, FSDP_EINVAL, "--%s is for --search", name);
    if (set->search && (set->json || set->trace))
        return fsdp_err_set(err, FSDP_EINVAL,
                            "--search and --%s: search first, then plan what it wrote: fsdp-plan "
                            "best.yaml --%s FILE",
                            set->json ? "json" : "trace", set->json ? "json" : "trace");
    return FSDP_OK;
}

static int check_one(const struct plan_settings *set, struct fsdp_err *err)
{
    const struct {
        const char *name;
        bool given;
    } all[] = {{"search", set->search},
               {"against", set->against != NULL},
               {"calibrate", set->calibrate != NULL},
               {"measure", set->measure},
               {"foreign", set->foreign.tp > 0}};
    const char *first = NULL;

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (all[i].given && first)
            return fsdp_err_set(err, FSDP_EINVAL, "--%s and --%s: give one of them", first,
                                all[i].name);
        first = all[i].given ? all[i].name : first;
    }
    if (set->grid && !set->measure)
        return fsdp_err_set(err, FSDP_EINVAL, "--grid is for --measure");
    return FSDP_OK;
}

static int answer_asked(const struct plan_settings *set, const struct fsdp_cli_line *line,
                        bool *fits, struct fsdp_err *err)
{
    struct plan_asked asked;

    FSDP_TRY(check_search(set, err));
    FSDP_TRY(plan_check_scale(set, err));
    FSDP_TRY(plan_ask(&asked, set, line, err));
    int rc = plan_check_files(set, asked.question.config, err);
    if (rc == FSDP_OK)
        rc = plan_check_chart(set, asked.question.config, err);
    if (rc == FSDP_OK)
        rc = set->search       ? plan_search(&asked, set, fits, err)
             : set->scale.from ? plan_scale(&asked, set, fits, err)
             : set->against    ? plan_against(&asked, set, err)
             : set->calibrate  ? plan_calibrate(&asked, set, err)
                               : answer_question(&asked, set, fits, err);
    plan_close(&asked);
    return rc;
}

/* The arguments in their order, which parsing changes; ended by NULL. */
static char **copy_arguments(int argc, char **argv, struct fsdp_err *err)
{
    char **given = fsdp_alloc((size_t)argc + 1, sizeof *given, "arguments", err);

    for (int i = 0; given && i < argc; i++)
        given[i] = argv[i];
    return given;
}

static void print_warning(void *ctx, enum fsdp_log_level level, const char *text)
{
    (void)ctx, (void)level;
    fprintf(stderr, "fsdp-plan: %s\n", text);
}

int main(int argc, char **argv)
{
    struct plan_settings set = {.ngpus = 0};
    struct fsdp_err err = FSDP_ERR_INIT;
    struct fsdp_cli_line line;
    bool fits = true;

    fsdp_std_fill();
    program.keys = config_keys(&program.nkeys);
    char **given = copy_arguments(argc, argv, &err);
    int rc = fsdp_cli_begin(&line, &program, &set, argc, argv, stderr);
    if (rc < 0) {
        fsdp_log_set(print_warning, NULL, FSDP_LOG_WARN);
        rc = given ? check_one(&set, &err) : FSDP_ENOMEM;
        if (rc == FSDP_OK)
            rc = set.measure ? plan_measure(&set, &line, given, &err)
                             : answer_asked(&set, &line, &fits, &err);
        if (rc && rc != PLAN_SAID)
            fprintf(stderr, "fsdp-plan: %s\n", err.text);
        rc = rc == FSDP_EIO ? 1 : rc ? 2 : !fits;
    }
    fsdp_free(given);
    return rc;
}
