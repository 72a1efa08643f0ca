/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "report.h"

#define BOLD "\033[1m"
#define RED "\033[31m"
#define YELLOW "\033[33m"
#define PLAIN "\033[0m"
#define CLEAR_TO_END "\033[K"

/* ---- numbers --------------------------------------------------------------------------------- */

const char *report_count(char out[REPORT_NUMBER_NBYTES], uint64_t count)
{
    return fsdp_count_text(out, count);
}

const char *report_rate(char out[REPORT_NUMBER_NBYTES], double rate)
{
    return fsdp_rate_text(out, rate);
}

const char *report_seconds(char out[REPORT_NUMBER_NBYTES], double seconds)
{
    int64_t s = !(seconds > 0) ? 0 : seconds > 1e9 ? 1000000000 : (int64_t)(seconds + 0.5);

    if (seconds < 9.95)
        snprintf(out, REPORT_NUMBER_NBYTES, "%.1fs", seconds < 0 ? 0 : seconds);
    else if (s < 60)
        snprintf(out, REPORT_NUMBER_NBYTES, "%" PRId64 "s", s);
    else if (s < 3600)
        snprintf(out, REPORT_NUMBER_NBYTES, "%" PRId64 "m%02" PRId64 "s", s / 60, s % 60);
    else
        snprintf(out, REPORT_NUMBER_NBYTES, "%" PRId64 "h%02" PRId64 "m", s / 3600, s / 60 % 60);
    return out;
}

/* Resident memory of this process. */
static uint64_t resident_nbytes(void)
{
    unsigned long all = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");

    if (file) {
        if (fscanf(file, "%lu %lu", &all, &resident) != 2)
            resident = 0;
        fclose(file);
    }
    return (uint64_t)resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* ---- opening --------------------------------------------------------------------------------- */

/* A line to be read on its own must not continue the progress line. */
static void end_line(struct report *report)
{
    if (report->line_open) {
        fputs("\n", stdout);
        fflush(stdout);
    }
    report->line_open = false;
}

static void log_line(void *ctx, enum fsdp_log_level level, const char *text)
{
    struct report *report = ctx;
    bool bad = level <= FSDP_LOG_WARN, color = bad && report->color_err;
    FILE *to = bad ? stderr : stdout;
    const char *word = level == FSDP_LOG_ERROR ? "error: " : bad ? "warning: " : "";
    const char *on = !color ? "" : level == FSDP_LOG_ERROR ? RED : YELLOW;

    if (!bad && !report->lead)
        return;
    end_line(report);
    if (report->lead)
        fprintf(to, "%s%s%s%s\n", on, word, color ? PLAIN : "", text);
    else
        fprintf(to, "%s%s%srank %d on %s: %s\n", on, word, color ? PLAIN : "", report->rank,
                report->host, text);
    fflush(to);
}

static bool use_color(const struct config *config, int fd)
{
    int color = config ? config->log.color : CONFIG_COLOR_AUTO;
    if (color != CONFIG_COLOR_AUTO)
        return color == CONFIG_COLOR_ALWAYS;
    return isatty(fd) && !getenv("NO_COLOR");
}

void report_open(struct report *report, int rank, const char *host, const struct config *config,
                 bool verbose)
{
    int progress = config ? config->log.progress : CONFIG_PROGRESS_AUTO;

    *report = (struct report){
        .rank = rank,
        .host = host,
        .lead = rank == 0,
        .verbose = verbose,
        .in_place = progress == CONFIG_PROGRESS_LINE ||
                    (progress == CONFIG_PROGRESS_AUTO && isatty(STDOUT_FILENO)),
        .color_out = use_color(config, STDOUT_FILENO),
        .color_err = use_color(config, STDERR_FILENO),
        .interval = config ? config->log.interval : 1,
        .steps = config ? config->train.steps : 0,
    };
    fsdp_log_set(log_line, report, verbose ? FSDP_LOG_DEBUG : FSDP_LOG_INFO);
}

void report_close(struct report *report)
{
    end_line(report);
    fsdp_log_set(NULL, NULL, FSDP_LOG_INFO);
}

/* ---- lines ----------------------------------------------------------------------------------- */

void report_title(struct report *report, const char *title)
{
    if (!report->lead || report->hide_rows)
        return;
    end_line(report);
    printf("%s%s%s\n", report->color_out ? BOLD : "", title, report->color_out ? PLAIN : "");
    fflush(stdout);
}

void report_row(struct report *report, const char *what, const char *fmt, ...)
{
    enum { WIDTH = 32 };
    va_list ap;

    if (!report->lead || report->hide_rows)
        return;
    printf("  %-*s ", WIDTH, what);
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    putchar('\n');
    fflush(stdout);
}

/* Prints text in lines of REPORT_COLUMNS, cut at spaces; a long path stays whole, to be copied. */
static void print_wrapped(const char *text, int indent)
{
    const int room = REPORT_COLUMNS - indent;

    for (;;) {
        int len = (int)strlen(text), cut = len;
        if (len > room) {
            for (cut = room; cut > 0 && text[cut] != ' '; cut--)
                ;
            if (!cut)
                cut = (int)strcspn(text, " ");
        }
        printf("%.*s\n", cut, text);
        text += cut + strspn(text + cut, " ");
        if (!*text)
            return;
        printf("%*s", indent, "");
    }
}

void report_fact(struct report *report, const char *what, const char *fmt, ...)
{
    enum { WIDTH = 12 };
    char text[REPORT_FACT_NBYTES];
    va_list ap;

    if (!report->lead)
        return;
    end_line(report);
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    printf("  %-*s ", WIDTH, what);
    print_wrapped(text, WIDTH + 3);
    fflush(stdout);
}

void report_line(struct report *report, const char *fmt, ...)
{
    va_list ap;

    if (!report->lead)
        return;
    end_line(report);
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    putchar('\n');
    fflush(stdout);
}

void report_error(struct report *report, const char *text, bool all_alike)
{
    const char *on = report->color_err ? RED : "", *off = report->color_err ? PLAIN : "";

    end_line(report);
    if (all_alike)
        fprintf(stderr, "%sfsdp-launch: %s%s\n", on, text, off);
    else
        fprintf(stderr, "%sfsdp-launch: rank %d on %s: %s%s\n", on, report->rank, report->host,
                text, off);
    fflush(stderr);
}

/* Columns of the terminal; a line that wraps could not be rewritten. */
static int terminal_columns(void)
{
    struct winsize size;
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col - 1 : 1000;
}

/* Often enough to look alive, and no more. */
static bool shows(struct report *report, const struct report_step *step, bool last)
{
    const double refresh_s = 0.1;
    double now = fsdp_time_now();

    if (!report->lead)
        return false;
    if (!report->in_place)
        return last || step->step % report->interval == 0;
    if (!last && now - report->shown < refresh_s)
        return false;
    report->shown = now;
    return true;
}

/* The sign of what is no number says nothing. */
static double unsigned_nan(double x)
{
    return isnan(x) ? (double)NAN : x;
}

/* ---- the progress line ----------------------------------------------------------------------- */

/* The parts of a progress line, in the order in which they are shown. */
enum { PART_STEP, PART_LOSS, PART_NORM, PART_LR, PART_RATE, PART_FLOPS, PART_MFU, PART_MEMORY };
enum { PART_LEFT = PART_MEMORY + 1, NPARTS, PART_NBYTES = 64 };
typedef char progress_parts[NPARTS][PART_NBYTES];

/* Four decimals of a usual loss; no more digits of one that has exploded. */
static void write_loss(char out[PART_NBYTES], double loss)
{
    const double size = fabs(loss);

    if (isfinite(loss) && size < 1e5)
        snprintf(out, PART_NBYTES, "%.*f", size < 10 ? 4 : size < 100 ? 3 : 1, loss);
    else
        snprintf(out, PART_NBYTES, "%.3g", unsigned_nan(loss));
}

const char *report_rate_short(char out[REPORT_NUMBER_NBYTES], double rate)
{
    static const struct {
        double unit;
        const char *letter;
    } units[] = {{1e9, "G"}, {1e6, "M"}, {1e3, "k"}};

    if (rate >= 1e15) { /* of a file that says anything */
        snprintf(out, REPORT_NUMBER_NBYTES, "%.2g", rate);
        return out;
    }
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        const double x = rate / units[i].unit;
        if (x < 0.9995 || !isfinite(x))
            continue;
        snprintf(out, REPORT_NUMBER_NBYTES, "%.*f%s",
                 x < 9.995   ? 2
                 : x < 99.95 ? 1
                             : 0,
                 x, units[i].letter);
        return out;
    }
    return report_rate(out, rate);
}

const char *report_left(char out[REPORT_NUMBER_NBYTES], double seconds)
{
    const int64_t minute = 60, hour = 60 * minute, day = 24 * hour;
    const int64_t s = !(seconds > 0) ? 0 : seconds > 1e9 ? 1000000000 : (int64_t)(seconds + 0.5);

    if (s < minute)
        snprintf(out, REPORT_NUMBER_NBYTES, "%" PRId64 "s", s);
    else if (s < 10 * minute)
        return report_seconds(out, seconds);
    else if (s < hour)
        snprintf(out, REPORT_NUMBER_NBYTES, "%" PRId64 "m", s / minute);
    else if (s < 10 * hour)
        return report_seconds(out, seconds);
    else if (s < 100 * hour)
        snprintf(out, REPORT_NUMBER_NBYTES, "%" PRId64 "h", s / hour);
    else
        snprintf(out, REPORT_NUMBER_NBYTES, "%" PRId64 "d", s / day);
    return out;
}

/* What the line has room for: 0 all, then shorter numbers, then parts alone that nobody can miss.
 */
enum { LEVEL_SHORT = 1, LEVEL_NO_LR, LEVEL_NO_MFU, LEVEL_NO_LEFT, LEVEL_LAST = LEVEL_NO_LEFT };

static void make_parts(progress_parts parts, const struct report *report,
                       const struct report_step *step, int level)
{
    char number[REPORT_NUMBER_NBYTES], loss[PART_NBYTES];
    const double left = report->step_seconds * (double)(report->steps - step->step);

    memset(parts, 0, sizeof(progress_parts));
    write_loss(loss, step->loss);
    snprintf(parts[PART_STEP], PART_NBYTES, "step %" PRId64 "/%" PRId64, step->step, report->steps);
    snprintf(parts[PART_LOSS], PART_NBYTES, "loss %.*s", PART_NBYTES - 6, loss);
    snprintf(parts[PART_RATE], PART_NBYTES, "%s tok/s",
             level < LEVEL_SHORT && step->tokens_per_s < 999999.5
                 ? report_rate(number, step->tokens_per_s)
                 : report_rate_short(number, step->tokens_per_s));
    if (level < LEVEL_NO_LR)
        snprintf(parts[PART_LR], PART_NBYTES, "lr %.1e", step->lr);
    if (level < LEVEL_NO_MFU && step->mfu > 0)
        snprintf(parts[PART_MFU], PART_NBYTES, "MFU %.*f%%", level < LEVEL_SHORT, 100 * step->mfu);
    if (level < LEVEL_NO_LEFT && step->step < report->steps)
        snprintf(parts[PART_LEFT], PART_NBYTES, "%s left", report_left(number, left));
}

/* What -v adds. The metrics have it all. */
static void make_more_parts(progress_parts parts, const struct report_step *step)
{
    char memory[FSDP_NBYTES_TEXT];

    snprintf(parts[PART_NORM], PART_NBYTES, "norm %.3g", unsigned_nan(step->grad_norm));
    snprintf(parts[PART_FLOPS], PART_NBYTES, "%.3g TFLOP/s", step->tflops);
    snprintf(parts[PART_MEMORY], PART_NBYTES, "%s", fsdp_nbytes_text(memory, resident_nbytes()));
}

/* Returns the length. */
static size_t join_parts(char *out, size_t out_nbytes, progress_parts parts)
{
    size_t len = 0;

    out[0] = 0;
    for (int i = 0; i < NPARTS && len < out_nbytes; i++)
        if (parts[i][0])
            len += (size_t)snprintf(out + len, out_nbytes - len, "%s%s", i ? "  " : "", parts[i]);
    return len;
}

void report_progress_text(char *out, size_t out_nbytes, const struct report *report,
                          const struct report_step *step, int columns)
{
    progress_parts parts;

    if (report->verbose) {
        make_parts(parts, report, step, 0);
        make_more_parts(parts, step);
        if (join_parts(out, out_nbytes, parts) <= (size_t)columns || !report->in_place)
            return;
    }
    for (int level = 0; level <= LEVEL_LAST; level++) {
        make_parts(parts, report, step, level);
        if (join_parts(out, out_nbytes, parts) <= (size_t)columns)
            return;
    }
}

void report_progress(struct report *report, const struct report_step *step, bool last)
{
    char line[NPARTS * PART_NBYTES];
    const int columns = report->in_place ? terminal_columns() : REPORT_COLUMNS;

    /* The first steps touch memory for the first time; later ones weigh more. */
    report->step_seconds =
        report->step_seconds > 0 ? 0.9 * report->step_seconds + 0.1 * step->seconds : step->seconds;
    if (!shows(report, step, last))
        return;
    report_progress_text(line, sizeof line, report, step, columns);
    if (report->in_place)
        printf("\r%.*s%s", columns, line, CLEAR_TO_END);
    else
        printf("%s\n", line);
    report->line_open = report->in_place;
    fflush(stdout);
}
