/* SPDX-License-Identifier: Apache-2.0 */
/* The lines of metrics, and the state of a run in a checkpoint. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "train/report/report.h"
#include "train/report/sink.h"
#include "train/setup/train_state.h"
#include "tap.h"

static char dir[] = "/tmp/test_metrics_XXXXXX";
static char file[64];

static const char *content_of(const char *path)
{
    static char text[4096];
    FILE *in = fopen(path, "r");
    size_t nbytes = in ? fread(text, 1, sizeof text - 1, in) : 0;

    text[nbytes] = 0;
    if (in)
        fclose(in);
    return text;
}

static const char *content(void)
{
    return content_of(file);
}

static const char *redone(void)
{
    char path[80];
    snprintf(path, sizeof path, "%s.redone", file);
    return content_of(path);
}

static void put(const char *text)
{
    FILE *out = fopen(file, "w");
    if (!out || fputs(text, out) < 0 || fclose(out) != 0)
        abort();
}

static void check_lines(void)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct metrics *m = NULL;
    struct metrics_row row = {.step = 1,
                              .loss = 5.66973877,
                              .grad_norm = 1.0 / 3,
                              .lr = 1e-3,
                              .tokens = 128,
                              .tokens_per_s = 12345.678,
                              .tflops = 1.5,
                              .mfu = 0.25,
                              .time = 0.5,
                              .wall = 1764000000.25,
                              .attempt = 2,
                              .ranks = 4};

    ok(metrics_open(&m, file, 0, &err) == FSDP_OK, "folders are created %s", err.text);
    ok(metrics_write(m, &row, &err) == FSDP_OK, "written");
    ok(!strcmp(content(), "{\"step\": 1, \"loss\": 5.66973877, \"grad_norm\": 0.333333333, "
                          "\"lr\": 0.001, \"tokens\": 128, \"tokens_per_s\": 12345.678, "
                          "\"tflops\": 1.5, \"mfu\": 0.25, "
                          "\"time\": 0.5, \"wall\": 1764000000.250, \"attempt\": 2, "
                          "\"ranks\": 4}\n"),
       "at once, with 9 digits");
    row = (struct metrics_row){
        .step = 2, .loss = NAN, .grad_norm = INFINITY, .has_eval = true, .eval_loss = 2.25};
    ok(metrics_write(m, &row, &err) == FSDP_OK && strstr(content(), "\"loss\": null") &&
           strstr(content(), "\"grad_norm\": null") && strstr(content(), "\"eval_loss\": 2.25}\n"),
       "what is not finite is null");
    row = (struct metrics_row){.step = 3, .loss_scale = 512, .skipped = true};
    ok(metrics_write(m, &row, &err) == FSDP_OK &&
           strstr(content(), "\"loss_scale\": 512, \"skipped\": true}\n"),
       "a step that was skipped");
    const uint64_t taken[] = {7, 0, UINT64_MAX};
    row = (struct metrics_row){.step = 4, .nsources = 3, .source_rows = taken, .has_eval = true};
    ok(metrics_write(m, &row, &err) == FSDP_OK &&
           strstr(content(),
                  "\"rows_by_source\": [7, 0, 18446744073709551615], \"eval_loss\": 0}\n"),
       "rows of each source");
    metrics_close(m);
    metrics_close(NULL);
}

static void check_resume(void)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct metrics *m = NULL;
    struct metrics_row row = {.step = 3};

    put("{\"step\": 1}\n{\"step\": 2}\n{\"step\": 3}\nrubbish\n{\"step\": 4}\n{\"step\": 5, \"lo");
    ok(metrics_open(&m, file, 2, &err) == FSDP_OK &&
           !strcmp(content(), "{\"step\": 1}\n{\"step\": 2}\n"),
       "later steps and an unfinished line are taken out");
    ok(!strcmp(redone(), "{\"step\": 3}\n{\"step\": 4}\n"), "and later steps are kept next to it");
    ok(metrics_write(m, &row, &err) == FSDP_OK &&
           strstr(content(), "{\"step\": 2}\n{\"step\": 3, ") != NULL,
       "and it continues behind them");
    struct metrics *second = NULL;
    ok(metrics_open(&second, file, 0, &err) == FSDP_EEXIST && strstr(err.text, file) &&
           strstr(content(), "{\"step\": 2}\n{\"step\": 3, ") != NULL,
       "a second run is refused, and loses no line of the first: %s", err.text);
    metrics_close(m);
    ok(metrics_open(&second, file, 3, &err) == FSDP_OK, "until that has ended: %s", err.text);
    metrics_close(second);
    put("{\"step\": 1}\n");
    ok(metrics_open(&m, file, 0, &err) == FSDP_OK && !content()[0], "a run from 0 starts anew");
    ok(!strcmp(redone(), "{\"step\": 3}\n{\"step\": 4}\n{\"step\": 1}\n"),
       "and what another had done stays next to it");
    metrics_close(m);
    ok(metrics_open(&m, "/dev/null/x/y", 0, &err) != FSDP_OK && strstr(err.text, "/dev/null"),
       "nowhere to write: %s", err.text);
    if (access("/dev/full", W_OK) == 0) {
        if (metrics_open(&m, "/dev/full", 0, &err) == FSDP_OK) {
            ok(metrics_write(m, &row, &err) == FSDP_ENOSPC, "a full disk: %s", err.text);
            metrics_close(m);
        } else {
            ok(false, "/dev/full: %s", err.text);
        }
    }
}

/* ---- sinks ----------------------------------------------------------------------------------- */

static int nwarnings;

static void count_warnings(void *ctx, enum fsdp_log_level level, const char *text)
{
    (void)ctx;
    nwarnings += level == FSDP_LOG_WARN && strstr(text, "log.metrics") != NULL;
}

static int start(struct sinks **out, struct config *config, int64_t step)
{
    const struct sink_run run = {.config = config, .step = step, .attempt = 1, .ranks = 3};
    struct fsdp_err err = FSDP_ERR_INIT;
    int rc = sinks_open(out, &run, &err);

    if (rc)
        diag("%s", err.text);
    return rc;
}

static void check_sinks(void)
{
    static struct config config = {.train.steps = 100};
    struct sinks *sinks = NULL;
    struct metrics_row row = {.step = 1};
    const struct sink_saved saved = {.step = 1, .path = "step-1"};

    ok(start(&sinks, &config, 0) == FSDP_OK, "without a sink");
    sinks_row(sinks, &row);
    sinks_saved(sinks, &saved);
    sinks_close(sinks, SINK_DONE, NULL);
    sinks_row(NULL, &row);

    snprintf(file, sizeof file, "%s/sink.jsonl", dir);
    snprintf(config.log.metrics, sizeof config.log.metrics, "%s", file);
    for (int attempt = 1; attempt <= 4; attempt++) {
        ok(start(&sinks, &config, 0) == FSDP_OK && sinks_attempt(sinks) == attempt,
           "start %d has its number", attempt);
        sinks_row(sinks, &row);
        ok(row.attempt == attempt && row.ranks == 3 && strstr(content(), "\"ranks\": 3"),
           "and tells it to the rows");
        sinks_close(sinks, SINK_STOPPED, NULL);
    }
    put("{\"step\": 1}\n");
    ok(start(&sinks, &config, 1) == FSDP_OK && sinks_attempt(sinks) == 4,
       "lines without a number are of a first start; those done again say that there were three");
    sinks_close(sinks, SINK_DONE, NULL);
    put("{\"step\": 1, \"attempt\": 2147483647}\n{\"step\": 1, \"attempt\": -9}\n");
    ok(start(&sinks, &config, 1) == FSDP_OK && sinks_attempt(sinks) == 4, "no number is too large");
    sinks_close(sinks, SINK_DONE, NULL);
    if (access("/dev/full", W_OK))
        return;
    fsdp_log_set(count_warnings, NULL, FSDP_LOG_INFO);
    snprintf(config.log.metrics, sizeof config.log.metrics, "/dev/full");
    ok(start(&sinks, &config, 0) == FSDP_OK, "on a full disk");
    sinks_row(sinks, &row);
    sinks_row(sinks, &row);
    ok(nwarnings == 1, "it is said once, and the run continues");
    sinks_close(sinks, SINK_DONE, NULL);
    fsdp_log_set(NULL, NULL, FSDP_LOG_INFO);
}

/* ---- files that are there -------------------------------------------------------------------- */

static void put_at(const char *path, const char *text)
{
    FILE *out = fopen(path, "w");
    if (!out || fputs(text, out) < 0 || fclose(out) != 0)
        abort();
}

static int open_at(char *setting, size_t nbytes, const char *path, struct config *config,
                   struct fsdp_err *err)
{
    const struct sink_run run = {.config = config, .attempt = 1, .ranks = 1};
    struct sinks *sinks = NULL;

    snprintf(setting, nbytes, "%s", path);
    const int rc = sinks_open(&sinks, &run, err);
    if (rc == FSDP_OK)
        sinks_close(sinks, SINK_DONE, NULL);
    setting[0] = 0;
    return rc;
}
#define OPEN_AT(which, path) open_at(config.log.which, sizeof config.log.which, path, &config, &err)

static int nforeign;

static void count_foreign(void *ctx, enum fsdp_log_level level, const char *text)
{
    (void)ctx;
    nforeign += level == FSDP_LOG_WARN && strstr(text, "is no status of a run") != NULL;
}

/* A setting that names a file by mistake costs nobody that file. */
static void check_others(void)
{
    static const char mine[] = "{\"text\": \"mine\"}\n{\"text\": \"too\"}\n";
    static struct config config = {.train.steps = 100};
    struct fsdp_err err = FSDP_ERR_INIT;
    char path[64], link[64], status[96];
    struct stat st;

    snprintf(path, sizeof path, "%s/mine.prom", dir);
    snprintf(link, sizeof link, "%s/link.prom", dir);
    put_at(path, mine);
    ok(OPEN_AT(metrics, path) == FSDP_EEXIST && strstr(err.text, path) &&
           !strcmp(content_of(path), mine),
       "lines of another kind stay: %s", err.text);
    ok(OPEN_AT(html, path) == FSDP_EEXIST && strstr(err.text, "log.html") &&
           !strcmp(content_of(path), mine),
       "so do they for a report: %s", err.text);
    ok(OPEN_AT(prometheus, path) == FSDP_EEXIST && strstr(err.text, "log.prometheus") &&
           !strcmp(content_of(path), mine),
       "and for Prometheus: %s", err.text);
    ok(OPEN_AT(prometheus, dir) != FSDP_OK && strstr(err.text, "a folder"), "a folder: %s",
       err.text);
    remove(path);
    ok(mkfifo(path, 0600) == 0 && OPEN_AT(html, path) == FSDP_EINVAL && stat(path, &st) == 0 &&
           S_ISFIFO(st.st_mode),
       "a pipe or a device stays: %s", err.text);
    remove(path);

    put_at(path, "");
    setenv("SLURM_JOB_NAME", "caf\xe9 \"x\"", 1);
    ok(symlink(path, link) == 0 && OPEN_AT(prometheus, link) == FSDP_OK && lstat(link, &st) == 0 &&
           S_ISLNK(st.st_mode) && strstr(content_of(path), "fsdp_running"),
       "a link stays one, and what it names is written");
    ok(strstr(content_of(path), "job_name=\"caf? \\\"x\\\"\"") != NULL,
       "a name that is no UTF-8 does not cost the whole file");
    unsetenv("SLURM_JOB_NAME");
    ok(OPEN_AT(prometheus, path) == FSDP_OK, "the file of an earlier start is replaced");
    snprintf(config.log.metrics, sizeof config.log.metrics, "%s/./mine.prom", dir);
    put_at(path, "");
    ok(OPEN_AT(html, path) == FSDP_EEXIST && strstr(err.text, "log.metrics"),
       "one file for two: %s", err.text);
    config.log.metrics[0] = 0;
    remove(path);
    ok(OPEN_AT(html, path) == FSDP_OK && OPEN_AT(html, path) == FSDP_OK,
       "an earlier report is replaced");

    put_at(path, "{\"step\": 1}\n{\"step\": 2}\n");
    struct metrics *m = NULL;
    ok(metrics_open(&m, link, 1, &err) == FSDP_OK && lstat(link, &st) == 0 && S_ISLNK(st.st_mode) &&
           !strcmp(content_of(path), "{\"step\": 1}\n"),
       "metrics behind a link are cut where they are");
    metrics_close(m);

    snprintf(status, sizeof status, "%s/status.json", dir);
    put_at(status, "{\"mine\": 1}");
    fsdp_log_set(count_foreign, NULL, FSDP_LOG_INFO);
    ok(open_at(config.checkpoint.path, sizeof config.checkpoint.path, dir, &config, &err) ==
               FSDP_OK &&
           nforeign == 1 && !strcmp(content_of(status), "{\"mine\": 1}"),
       "a status.json of another program stays");
    put_at(status, "{\"version\": 1, \"sta");
    ok(open_at(config.checkpoint.path, sizeof config.checkpoint.path, dir, &config, &err) ==
               FSDP_OK &&
           nforeign == 1 && strstr(content_of(status), "\"state\": \"done\""),
       "half of a status is replaced");
    fsdp_log_set(NULL, NULL, FSDP_LOG_INFO);
}

static void check_state(void)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct train_state a = {.step = 7,
                            .rows = 56,
                            .tokens = 1792,
                            .seconds = 0.1 + 0.2,
                            .model_seed = 3,
                            .global_batch_size = 8,
                            .data = {"stream", 32, 5, 100, UINT64_C(0xfedcba9876543210)},
                            .schedule = {FSDP_SCHEDULE_COSINE, 1e-3, 1e-5, 10, 100, 20},
                            .scaler = {32768, 12, 3}};
    struct train_state b, now;
    char *json = NULL;

    ok(train_state_write(&json, &a, "train:\n  steps: 1\n", NULL, &err) == FSDP_OK, "written");
    ok(train_state_read(&b, json, "ck", &err) == FSDP_OK, "read %s", err.text);
    ok(a.step == b.step && a.rows == b.rows && a.tokens == b.tokens && a.seconds == b.seconds &&
           a.model_seed == b.model_seed && !memcmp(&a.data, &b.data, sizeof a.data) &&
           a.schedule.kind == b.schedule.kind && a.schedule.lr == b.schedule.lr &&
           a.schedule.min_lr == b.schedule.min_lr &&
           a.schedule.warmup_steps == b.schedule.warmup_steps &&
           a.schedule.total_steps == b.schedule.total_steps &&
           a.schedule.decay_steps == b.schedule.decay_steps && b.scaler.scale == 32768 &&
           b.scaler.good_steps == 12 && b.scaler.nskipped == 3,
       "nothing is lost");

    now = (struct train_state){.data = a.data, .schedule = a.schedule, .global_batch_size = 8};
    ok(train_state_resume(&now, &b, false, "ck", &err) == FSDP_OK && now.step == 7 &&
           now.rows == 56 && now.tokens == 1792 && now.scaler.scale == 32768,
       "resumed");
    static const char *const words[] = {"train.seed 5", "data.layout stream", "data.seq_len 32",
                                        "other data"};
    for (int i = 0; i < 4; i++) {
        now = (struct train_state){.data = a.data, .schedule = a.schedule};
        now.data.seed += i == 0;
        if (i == 1)
            strcpy(now.data.layout, "rows");
        now.data.seq_len += i == 2;
        now.data.hash += i == 3;
        ok(train_state_resume(&now, &b, false, "ck", &err) == FSDP_EMISMATCH && now.step == 0 &&
               strstr(err.text, words[i]) && strstr(err.text, "checkpoint.data_position"),
           "refused: %s", err.text);
        ok(train_state_resume(&now, &b, true, "ck", &err) == FSDP_OK && now.step == 7 &&
               now.rows == 0,
           "but the data can start anew");
    }
    ok(train_state_read(&b, NULL, "ck", &err) == FSDP_EINVAL && strstr(err.text, "ck"), "%s",
       err.text);
    ok(train_state_read(&b, "{", "ck", &err) == FSDP_ECORRUPT, "%s", err.text);
    ok(train_state_read(&b, "{}", "ck", &err) == FSDP_ECORRUPT, "%s", err.text);
    ok(train_state_read(&b, "[1]", "ck", &err) == FSDP_ECORRUPT, "%s", err.text);
    char *at = strstr(json, "\"version\":1");
    if (at)
        at[10] = '9';
    ok(at && train_state_read(&b, json, "ck", &err) == FSDP_EUNSUPPORTED, "%s", err.text);
    fsdp_free(json);
}

static void check_numbers(void)
{
    char out[REPORT_NUMBER_NBYTES];

    ok(!strcmp(report_count(out, 0), "0") && !strcmp(report_count(out, 999), "999") &&
           !strcmp(report_count(out, 1000), "1,000") &&
           !strcmp(report_count(out, UINT64_MAX), "18,446,744,073,709,551,615"),
       "counts");
    ok(!strcmp(fsdp_nbytes_text(out, 999), "999 bytes") &&
           !strcmp(fsdp_nbytes_text(out, 1536), "1.5 KiB") &&
           !strcmp(fsdp_nbytes_text(out, 1u << 30), "1.0 GiB"),
       "bytes");
    ok(!strcmp(report_seconds(out, 0.25), "0.2s") && !strcmp(report_seconds(out, 59.6), "1m00s") &&
           !strcmp(report_seconds(out, 185), "3m05s") &&
           !strcmp(report_seconds(out, 7260), "2h01m"),
       "seconds");
    ok(!strcmp(report_rate_short(out, 3.25), "3.25") &&
           !strcmp(report_rate_short(out, 999.4), "999") &&
           !strcmp(report_rate_short(out, 11660), "11.7k") &&
           !strcmp(report_rate_short(out, 999999), "1.00M") &&
           !strcmp(report_rate_short(out, 123.4e6), "123M"),
       "short rates");
    ok(!strcmp(report_left(out, 3.2), "3s") && !strcmp(report_left(out, 95), "1m35s") &&
           !strcmp(report_left(out, 3599), "59m") && !strcmp(report_left(out, 7260), "2h01m") &&
           !strcmp(report_left(out, 360000 - 1), "99h") && !strcmp(report_left(out, 1e6), "11d"),
       "the time left");
}

static void check_progress_line(const char *want, int64_t steps, int columns,
                                const struct report_step *step)
{
    const struct report report = {.lead = true, .steps = steps, .step_seconds = 0.182};
    char line[512];

    report_progress_text(line, sizeof line, &report, step, columns);
    ok(!strcmp(line, want) && strlen(line) <= (size_t)columns, "%d columns: %s", columns, line);
}

/* What is least missed goes first, and only where there is no room. */
static void check_progress(void)
{
    struct report_step step = {.step = 638,
                               .loss = 1.40061,
                               .grad_norm = 0.4,
                               .lr = 2.2e-3,
                               .tokens_per_s = 11660.2,
                               .mfu = 0.412};

    check_progress_line(
        "step 638/1160  loss 1.4006  lr 2.2e-03  11,660 tok/s  MFU 41.2%  1m35s left", 1160, 80,
        &step);
    check_progress_line("step 638/1160  loss 1.4006  11.7k tok/s  MFU 41%  1m35s left", 1160, 60,
                        &step);
    check_progress_line("step 638/1160  loss 1.4006  11.7k tok/s", 1160, 40, &step);
    step.step = 999999;
    step.loss = 12.34567;
    step.tokens_per_s = 987654;
    check_progress_line(
        "step 999999/1000000  loss 12.346  lr 2.2e-03  987,654 tok/s  MFU 41.2%  0s left", 1000000,
        79, &step);
    step.step = 100000;
    check_progress_line(
        "step 100000/1000000  loss 12.346  lr 2.2e-03  988k tok/s  MFU 41%  45h left", 1000000, 79,
        &step);
    step.step = 1000000;
    step.loss = -NAN;
    step.mfu = 0;
    check_progress_line("step 1000000/1000000  loss nan  lr 2.2e-03  987,654 tok/s", 1000000, 79,
                        &step);
    step.loss = INFINITY;
    step.tokens_per_s = 123.4e6;
    check_progress_line("step 1000000/1000000  loss inf  lr 2.2e-03  123M tok/s", 1000000, 79,
                        &step);
}

int main(void)
{
    char command[64];

    if (!mkdtemp(dir))
        return 1;
    snprintf(file, sizeof file, "%s/a/b/metrics.jsonl", dir);
    check_lines();
    check_resume();
    check_sinks();
    check_others();
    check_state();
    check_numbers();
    check_progress();
    snprintf(command, sizeof command, "rm -rf %s", dir);
    ok(system(command) == 0, "cleaned up");
    return tap_done();
}
