/* SPDX-License-Identifier: Apache-2.0 */
#include <limits.h>
#include <malloc.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/time.h>
#include <unistd.h>

#include "ckpt/adapter.h"
#include "tool.h"

enum {
    SAY_SECONDS = 10,    /* between lines of progress where nobody watches */
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
    if (status == TOOL_USAGE)
        return fsdp_cli_refuse(stderr, tool->program, text);
    fprintf(stderr, "%s: %s\n", tool->name, tool_shown(text));
    return status;
}

const char *tool_shown(const char *name)
{
    static char text[PATH_MAX];
    snprintf(text, sizeof text, "%s", name);
    return fsdp_text_clean(text);
}

json_t *tool_json_text(const char *text)
{
    static const char replacement[] = "\xef\xbf\xbd"; /* U+FFFD */
    const char *end = text + strlen(text);
    char *valid = malloc(3 * (size_t)(end - text) + 1), *to = valid;
    uint32_t code;

    while (valid && text < end) {
        int nbytes = fsdp_utf8_decode(&code, text, end);
        memcpy(to, nbytes ? text : replacement, nbytes ? (size_t)nbytes : 3);
        to += nbytes ? nbytes : 3;
        text += nbytes ? nbytes : 1;
    }
    json_t *out = valid ? json_stringn(valid, (size_t)(to - valid)) : NULL;
    free(valid);
    return out;
}

void tool_json_set(json_t *object, const char *key, json_t *value)
{
    json_t *valid = tool_json_text(key);
    if (valid)
        json_object_set_new(object, json_string_value(valid), value);
    else
        json_decref(value);
    json_decref(valid);
}

int tool_json_print(const struct tool *tool, json_t *root, int status)
{
    if (!root || json_dumpf(root, stdout, TOOL_JSON_FLAGS))
        status = tool_fail(tool, TOOL_FAILED, "cannot write the result as JSON");
    putchar('\n');
    json_decref(root);
    return status;
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

/* ---- the command line ------------------------------------------------------------------------ */

/* Lists of many tensors go back to the system when they are freed. glibc would raise its threshold
 * to their size, take the next ones from the heap, and keep that. */
static void return_large_blocks(void)
{
#ifdef M_MMAP_THRESHOLD
    mallopt(M_MMAP_THRESHOLD, 1 << 20);
#endif
}

void tool_begin(struct tool *tool, const struct fsdp_cli_program *program)
{
    fsdp_std_fill();
    return_large_blocks();
    *tool = (struct tool){.program = program,
                          .name = program->name,
                          .args = CKPT_RESHARD_ARGS_INIT,
                          .percent = -1,
                          .begun = fsdp_time_now()};
    tool->args.select.include = tool->include;
    tool->args.select.exclude = tool->exclude;
    tool->args.select.maps = tool->maps;
    fsdp_log_set(on_log, tool, FSDP_LOG_INFO);
}

int tool_parse(struct tool *tool, int argc, char **argv)
{
    struct fsdp_cli_line line;
    const int status = fsdp_cli_begin(&line, tool->program, tool, argc, argv, stderr);
    tool->operands = line.operands;
    tool->noperands = line.noperands;
    return status;
}

int tool_status(const struct fsdp_err *err)
{
    return err->setting[0] ? TOOL_USAGE : TOOL_FAILED;
}

/* ---- writing --------------------------------------------------------------------------------- */

/* "37 %, 1.2 GiB of 3.4 GiB, 560.0 MiB/s" and the time left. */
static void progress_text(char *out, size_t out_nbytes, const struct tool *tool, uint64_t done,
                          uint64_t total, int percent)
{
    double seconds = fsdp_time_now() - tool->begun;
    double rate = seconds > 0 ? (double)done / seconds : 0;
    int len = snprintf(out, out_nbytes, "%d %%, %s of %s, %s/s", percent, tool_nbytes(done),
                       tool_nbytes(total), tool_nbytes((uint64_t)rate));
    if (rate > 0 && len > 0 && (size_t)len < out_nbytes)
        snprintf(out + len, out_nbytes - (size_t)len, ", %.0f s left",
                 (double)(total - done) / rate);
}

/* A line that wraps could not be drawn over. */
static int terminal_columns(void)
{
    struct winsize size;
    bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
    return known ? size.ws_col - 1 : 79;
}

int tool_progress(void *ctx, uint64_t done, uint64_t total)
{
    struct tool *tool = ctx;
    double now = fsdp_time_now();
    int percent = total ? (int)(100.0 * (double)done / (double)total) : 100;
    bool draws = tool->draw && percent != tool->percent;
    bool says = !tool->draw && !tool->quiet && now - tool->said >= SAY_SECONDS;
    char text[128];

    if (!draws && !says)
        return stop != 0;
    progress_text(text, sizeof text, tool, done, total, percent);
    if (draws) {
        tool->percent = percent;
        fprintf(stderr, "\r%.*s\033[K", terminal_columns(), text);
    } else {
        tool->said = now;
        fprintf(stderr, "%s: %s\n", tool->name, text);
    }
    return stop != 0;
}

static int print_json(const struct tool *tool, const struct ckpt_reshard_result *r)
{
    json_t *root = json_pack(
        "{s:o, s:b, s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:i, s:f}", "output",
        tool_json_text(tool->args.out), "dry_run", tool->args.dry_run, "tensors", r->ntensors,
        "files", r->nfiles, "bytes_read", (json_int_t)r->nbytes_read, "bytes_written",
        (json_int_t)r->nbytes_written, "bytes_resumed", (json_int_t)r->nbytes_resumed,
        "bytes_within", (json_int_t)r->nbytes_within, "bytes_memory", (json_int_t)r->nbytes_memory,
        "threads", r->nthreads, "seconds", r->seconds);
    return tool_json_print(tool, root, TOOL_DONE);
}

/* The plan of a dry run. */
static void print_plan(const struct tool *tool, const struct ckpt_reshard_result *r)
{
    printf("%s: nothing was written. The plan:\n", tool_shown(tool->args.out));
    printf("  read     %s (%llu bytes)\n", tool_nbytes(r->nbytes_read),
           (unsigned long long)r->nbytes_read);
    printf("  write    %s (%llu bytes): %d tensor%s in %d file%s\n", tool_nbytes(r->nbytes_written),
           (unsigned long long)r->nbytes_written, r->ntensors, r->ntensors == 1 ? "" : "s",
           r->nfiles, r->nfiles == 1 ? "" : "s");
    printf("  memory   %s of buffers for %d thread%s\n", tool_nbytes(r->nbytes_memory), r->nthreads,
           r->nthreads == 1 ? "" : "s");
    printf("  planned in %.3f s\n", r->seconds);
}

int tool_print_result(const struct tool *tool, const struct ckpt_reshard_result *r)
{
    if (tool->json)
        return print_json(tool, r);
    if (tool->quiet)
        return TOOL_DONE;
    if (tool->args.dry_run) {
        print_plan(tool, r);
        return TOOL_DONE;
    }
    printf("%s: %d tensor%s, %llu bytes in %d file%s, %.2f s", tool_shown(tool->args.out),
           r->ntensors, r->ntensors == 1 ? "" : "s", (unsigned long long)r->nbytes_written,
           r->nfiles, r->nfiles == 1 ? "" : "s", r->seconds);
    if (r->nbytes_resumed)
        printf(", %s of it from an earlier run", tool_nbytes(r->nbytes_resumed));
    if (r->nbytes_within)
        printf(", %s copied by the store itself", tool_nbytes(r->nbytes_within));
    putchar('\n');
    return TOOL_DONE;
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
    const char *term = getenv("TERM");
    bool can_draw = term && *term && strcmp(term, "dumb");
    tool->draw = !tool->quiet && can_draw && isatty(STDERR_FILENO);
    tool->said = fsdp_time_now();
}

bool tool_is_stopped(void)
{
    return stop != 0;
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

/* Does the output hold a whole model, if the input does? */
static bool takes_all(const struct tool *tool, const struct ckpt *ckpt)
{
    const struct ckpt_select *select = &tool->args.select;
    return !select->ninclude && !select->nexclude && !select->nmaps && !ckpt_holds_adapters(ckpt);
}

int tool_write_opened(struct tool *tool, struct ckpt *ckpt)
{
    struct ckpt_reshard_result result;
    struct fsdp_err err = FSDP_ERR_INIT;

    tool->args.progress = tool_progress;
    tool->args.progress_ctx = tool;
    int rc = takes_all(tool, ckpt) ? ckpt_warn_missing(ckpt, &err) : FSDP_OK;
    if (rc == FSDP_OK)
        rc = ckpt_reshard(&result, ckpt, &tool->args, &err);
    clear_line(tool);
    return rc ? tool_fail(tool, tool_status(&err), err.text) : tool_print_result(tool, &result);
}

int tool_write(struct tool *tool, const char *path)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct ckpt *ckpt = NULL;

    if (!tool->args.out)
        return tool_fail(tool, TOOL_USAGE, "name the output: -o OUTPUT");
    tool_watch(tool);
    const int rc = ckpt_open_with(&ckpt, path, tool->config, &err);
    const int status =
        rc ? tool_fail(tool, tool_status(&err), err.text) : tool_write_opened(tool, ckpt);
    ckpt_close(ckpt);
    return tool_end(tool, status);
}
