/* SPDX-License-Identifier: Apache-2.0 */
#include <jansson.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#include "tool.h"

enum {
    SAY_SECONDS = 10,     /* between lines of progress where nobody watches */
    GRACE_USEC = 700000, /* for an orderly end, from the first signal on */
};

static volatile sig_atomic_t stop;
static char grace_over[128]; /* what to print then */

/* What is half done is then as after SIGKILL: the same command resumes, or removes it. */
static void die_of(int number)
{
    signal(number, SIG_DFL);
    raise(number);
}

/* The first signal asks the work to end. The program dies of a second one, or when the work does
 * not end, which may wait for a server or a disk. */
static void on_signal(int number)
{
    const struct itimerval grace = {.it_value.tv_usec = GRACE_USEC};
    if (stop) {
        die_of(number);
        return;
    }
    stop = number;
    setitimer(ITIMER_REAL, &grace, NULL);
}

static void on_grace_over(int number)
{
    ssize_t put = write(STDERR_FILENO, grace_over, strlen(grace_over));
    (void)put, (void)number;
    die_of(stop);
}

/* ---- messages -------------------------------------------------------------------------------- */

static void clear_line(struct tool *tool)
{
    if (tool->draw && tool->percent >= 0)
        fputs("\r\033[K", stderr);
    tool->percent = -1;
}

static void on_log(void *ctx, enum fsdp_log_level level, const char *text)
{
    struct tool *tool = ctx;
    if (tool->quiet && level > FSDP_LOG_WARN)
        return;
    clear_line(tool);
    fprintf(stderr, "%s: %s\n", tool->name, text);
}

int tool_fail(const struct tool *tool, int status, const char *text)
{
    fprintf(stderr, "%s: %s\n", tool->name, text);
    if (status == TOOL_USAGE)
        fprintf(stderr, "Try '%s --help'.\n", tool->name);
    return status;
}

const char *tool_shown(const char *name)
{
    static char text[512];
    size_t i = 0;
    for (; name[i] && i < sizeof text - 1; i++)
        text[i] = (unsigned char)name[i] < ' ' || name[i] == 127 ? '?' : name[i];
    text[i] = 0;
    return text;
}

const char *tool_nbytes(uint64_t nbytes)
{
    static char texts[4][FSDP_NBYTES_TEXT];
    static int turn;
    turn = (turn + 1) % 4;
    return fsdp_nbytes_text(texts[turn], nbytes);
}

int tool_flush(const struct tool *tool, int status)
{
    if (!fflush(stdout) && !ferror(stdout))
        return status;
    return status ? status : tool_fail(tool, TOOL_FAILED, "cannot write the output");
}

/* ---- options --------------------------------------------------------------------------------- */

void tool_begin(struct tool *tool, const char *name, const char *usage)
{
    *tool = (struct tool){.name = name,
                          .usage = usage,
                          .args = CKPT_RESHARD_ARGS_INIT,
                          .percent = -1,
                          .begun = fsdp_time_now()};
    tool->args.select.include = tool->include;
    tool->args.select.exclude = tool->exclude;
    tool->args.select.maps = tool->maps;
    fsdp_log_set(on_log, tool, FSDP_LOG_INFO);
}

static int add_text(const char **list, int *count, const char *text, struct fsdp_err *err)
{
    if (*count == TOOL_MAX_GLOBS)
        return fsdp_err_set(err, FSDP_EINVAL, "more than %d of an option", TOOL_MAX_GLOBS);
    list[(*count)++] = text;
    return FSDP_OK;
}

static int parse_threads(int *out, const char *text, struct fsdp_err *err)
{
    char *end;
    long value = strtol(text, &end, 10);
    if (*end || end == text || value < 1 || value > 256)
        return fsdp_err_set(err, FSDP_EINVAL, "--threads %s: not a number from 1 to 256", text);
    *out = (int)value;
    return FSDP_OK;
}

static int parse_heads(struct ckpt_select *select, const char *text, struct fsdp_err *err)
{
    int end = 0;
    if (sscanf(text, "%9dx%9d%n", &select->nheads, &select->nkv_heads, &end) == 2 && !text[end] &&
        select->nheads > 0 && select->nkv_heads > 0)
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_EINVAL, "--heads %s: not of the form 32x8", text);
}

static int take_option(struct tool *tool, int option, struct fsdp_err *err)
{
    struct ckpt_reshard_args *args = &tool->args;
    enum fsdp_dtype dtype;
    switch (option) {
    case 'q':
        tool->quiet = true;
        return FSDP_OK;
    case TOOL_JSON:
        tool->json = true;
        return FSDP_OK;
    case 'o':
        args->out = optarg;
        return FSDP_OK;
    case TOOL_INCLUDE:
        return add_text(tool->include, &args->select.ninclude, optarg, err);
    case TOOL_EXCLUDE:
        return add_text(tool->exclude, &args->select.nexclude, optarg, err);
    case TOOL_MAP:
        return add_text(tool->maps, &args->select.nmaps, optarg, err);
    case TOOL_HEADS:
        return parse_heads(&args->select, optarg, err);
    case TOOL_DTYPE:
        args->dtype = optarg;
        return fsdp_dtype_parse(&dtype, optarg, err);
    case TOOL_MEM:
        return ckpt_nbytes_parse(&args->mem_nbytes, optarg, err);
    case TOOL_THREADS:
        return parse_threads(&args->nthreads, optarg, err);
    case TOOL_OVERWRITE:
        args->overwrite = true;
        return FSDP_OK;
    case TOOL_DRY_RUN:
        args->dry_run = true;
        return FSDP_OK;
    default:
        return fsdp_err_set(err, FSDP_EINVAL, "wrong usage");
    }
}

bool tool_option(struct tool *tool, int option, int *status)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    if (option == 'h' || option == TOOL_VERSION) {
        if (option == 'h')
            fputs(tool->usage, stdout);
        else
            printf("%s %s\n", tool->name, FSDP_VERSION_STRING);
        *status = tool_flush(tool, TOOL_DONE);
        return false;
    }
    if (take_option(tool, option, &err)) {
        *status = tool_fail(tool, TOOL_USAGE, err.text);
        return false;
    }
    return true;
}

bool tool_arguments(const struct tool *tool, int argc, int nwanted, const char *what, int *status)
{
    char text[256];
    if (argc - optind == nwanted)
        return true;
    snprintf(text, sizeof text, "%s to be named, no more and no fewer", what);
    *status = tool_fail(tool, TOOL_USAGE, text);
    return false;
}

/* ---- writing --------------------------------------------------------------------------------- */

int tool_progress(void *ctx, uint64_t done, uint64_t total)
{
    struct tool *tool = ctx;
    double now = fsdp_time_now(), seconds = now - tool->begun;
    int percent = total ? (int)(100.0 * (double)done / (double)total) : 100;
    double rate = seconds > 0 ? (double)done / seconds : 0;
    if (tool->draw && percent != tool->percent) {
        tool->percent = percent;
        fprintf(stderr, "\r%3d %%  %s of %s, %s/s, %.0f s left \033[K", percent, tool_nbytes(done),
                tool_nbytes(total), tool_nbytes((uint64_t)rate),
                rate > 0 ? (double)(total - done) / rate : 0.0);
    } else if (!tool->draw && !tool->quiet && now - tool->said >= SAY_SECONDS) {
        tool->said = now;
        fprintf(stderr, "%s: %d %%, %s of %s, %s/s\n", tool->name, percent, tool_nbytes(done),
                tool_nbytes(total), tool_nbytes((uint64_t)rate));
    }
    return stop != 0;
}

static void print_json(const struct tool *tool, const struct ckpt_reshard_result *r)
{
    json_t *root = json_pack(
        "{s:s, s:b, s:i, s:i, s:I, s:I, s:I, s:I, s:i, s:f}", "output", tool->args.out, "dry_run",
        tool->args.dry_run, "tensors", r->ntensors, "files", r->nfiles, "bytes_read",
        (json_int_t)r->nbytes_read, "bytes_written", (json_int_t)r->nbytes_written, "bytes_resumed",
        (json_int_t)r->nbytes_resumed, "bytes_memory", (json_int_t)r->nbytes_memory, "threads",
        r->nthreads, "seconds", r->seconds);
    json_dumpf(root, stdout, JSON_INDENT(1));
    putchar('\n');
    json_decref(root);
}

static void print_result(const struct tool *tool, const struct ckpt_reshard_result *r)
{
    if (tool->json) {
        print_json(tool, r);
        return;
    }
    if (tool->quiet)
        return;
    if (tool->args.dry_run) {
        printf("%s: nothing was written. The plan:\n", tool->args.out);
        printf("  read     %s (%llu bytes)\n", tool_nbytes(r->nbytes_read),
               (unsigned long long)r->nbytes_read);
        printf("  write    %s (%llu bytes): %d tensor%s in %d file%s\n",
               tool_nbytes(r->nbytes_written), (unsigned long long)r->nbytes_written, r->ntensors,
               r->ntensors == 1 ? "" : "s", r->nfiles, r->nfiles == 1 ? "" : "s");
        printf("  memory   %s of buffers for %d thread%s\n", tool_nbytes(r->nbytes_memory),
               r->nthreads, r->nthreads == 1 ? "" : "s");
        printf("  planned in %.3f s\n", r->seconds);
        return;
    }
    printf("%s: %d tensor%s, %llu bytes in %d file%s, %.2f s", tool->args.out, r->ntensors,
           r->ntensors == 1 ? "" : "s", (unsigned long long)r->nbytes_written, r->nfiles,
           r->nfiles == 1 ? "" : "s", r->seconds);
    if (r->nbytes_resumed)
        printf(", %s of it from an earlier run", tool_nbytes(r->nbytes_resumed));
    putchar('\n');
}

void tool_watch(struct tool *tool)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    struct sigaction over = {.sa_handler = on_grace_over};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
    sigaction(SIGALRM, &over, NULL);
    snprintf(grace_over, sizeof grace_over,
             "\n%s: ended while it waited; the same command resumes\n", tool->name);
    tool->draw = !tool->quiet && isatty(STDERR_FILENO);
    tool->said = fsdp_time_now();
}

int tool_end(struct tool *tool, int status)
{
    clear_line(tool);
    status = tool_flush(tool, status);
    if (stop && status) {
        signal(stop, SIG_DFL);
        raise(stop); /* so that a shell sees why */
    }
    return status;
}

int tool_write(struct tool *tool, const char *path)
{
    struct ckpt_reshard_result result;
    struct fsdp_err err = FSDP_ERR_INIT;
    struct ckpt *ckpt = NULL;

    if (!tool->args.out)
        return tool_fail(tool, TOOL_USAGE, "no output is named (-o)");
    tool_watch(tool);
    tool->args.progress = tool_progress;
    tool->args.progress_ctx = tool;
    int rc = ckpt_open(&ckpt, path, &err);
    if (rc == FSDP_OK)
        rc = ckpt_reshard(&result, ckpt, &tool->args, &err);
    clear_line(tool);
    int status = rc ? tool_fail(tool, TOOL_FAILED, err.text) : TOOL_DONE;
    if (rc == FSDP_OK)
        print_result(tool, &result);
    ckpt_close(ckpt);
    return tool_end(tool, status);
}
