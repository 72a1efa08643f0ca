/* SPDX-License-Identifier: Apache-2.0 */
/* Metrics as charts: lines, restarts, labels. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "curves/curves.h"
#include "curves/line.h"
#include "curves/story.h"
#include "tap.h"

static char dir[] = "/tmp/test_curves_XXXXXX";
static char file[64], redone[80];

static void put(const char *path, const char *text)
{
    FILE *to = fopen(path, "w");

    if (!to || fputs(text, to) < 0 || fclose(to))
        abort();
}

/* ---- lines ----------------------------------------------------------------------------------- */

static void add(void *ctx, const char *key, size_t nbytes, double value)
{
    char *to = ctx;

    sprintf(to + strlen(to), "%.*s=%g ", (int)nbytes, key, value);
}

static void check_line(const char *line, bool wanted, const char *numbers)
{
    char found[1024] = "";
    const bool fine = line_read(line, strlen(line), add, found);

    if (!ok(fine == wanted && (!wanted || !strcmp(found, numbers)), "%s %.*s",
            wanted ? "read:" : "refused:", (int)strcspn(line, "\n"), line))
        diag("%d: %s", fine, found);
}

static void check_lines(void)
{
    check_line("{\"step\": 1, \"loss\": 2.5e-1}\n", true, "step=1 loss=0.25 ");
    check_line(" {\"a\":-3,\"b\":true,\"c\":false , \"d\" : null}\n", true, "a=-3 b=1 c=0 d=nan ");
    check_line("{\"s\": \"a, \\\"b\\\": 7}\", \"x\": [1, {\"y\": \"]\"}], \"z\": 4}\n", true,
               "z=4 ");
    check_line("{}\n", true, "");
    check_line("{\"a\": NaN, \"b\": -Infinity, \"c\": 1}", true, "a=nan b=nan c=1 ");
    check_line("", false, "");
    check_line("{", false, "");
    check_line("{\"step\": 1, \"loss\": 2", false, "");
    check_line("{\"step\": 1, \"lo", false, "");
    check_line("{\"step\": 1} {\"step\": 2}\n", false, "");
    check_line("{\"step\" 1}\n", false, "");
    check_line("{\"step\": }\n", false, "");
    check_line("{\"step\": 0x}\n", false, "");
    check_line("{\"a\": [1, 2}\n", false, "");
    check_line("[1, 2]\n", false, "");
    check_line("step 1 loss 2\n", false, "");
}

/* ---- restarts -------------------------------------------------------------------------------- */

static void write_steps(const char *path, const char *mode, int from, int to, int attempt,
                        int ranks)
{
    FILE *out = fopen(path, mode);

    for (int s = from; s <= to; s++) {
        fprintf(out, "{\"step\": %d, \"loss\": %g, \"tokens\": %d", s, 10.0 / s, s * 10);
        if (attempt)
            fprintf(out, ", \"attempt\": %d, \"ranks\": %d", attempt, ranks);
        if (s % 4 == 0)
            fprintf(out, ", \"eval_loss\": %g", 11.0 / s);
        fputs("}\n", out);
    }
    fclose(out);
}

static int read_run(struct run *run, struct fsdp_err *err)
{
    static const char *const keys[] = {"loss", "eval_loss"};

    *err = (struct fsdp_err)FSDP_ERR_INIT;
    curves_run_create(run, keys, 2, err);
    return curves_run_read(run, file, err);
}

static void check_killed(void)
{
    struct fsdp_err err;
    struct story story;
    struct run run;

    write_steps(file, "w", 1, 10, 1, 4);
    write_steps(file, "a", 11, 20, 2, 2);
    write_steps(redone, "w", 11, 13, 1, 4);
    ok(!read_run(&run, &err) && run.nrows == 23 && !run.nbad, "a file and what it says of steps "
                                                              "that were done again");
    ok(!story_make(&story, &run, &err) && story.nattempts == 2, "two starts");
    ok(story.attempt[0].nrows == 13 && story.attempt[0].nkept == 10 &&
           story.attempt[0].ranks == 4 && story.attempt[1].nrows == 10 &&
           story.attempt[1].nkept == 10 && story.attempt[1].ranks == 2,
       "of the first, 3 of 13 steps were lost");
    ok(story.restart[0].was_killed && story.restart[0].last->value[RUN_STEP] == 13 &&
           story.restart[0].from->value[RUN_STEP] == 10 &&
           story.restart[0].next->value[RUN_STEP] == 11,
       "killed at step 13, resumed from step 10");
    story_destroy(&story);
    curves_run_destroy(&run);

    unlink(redone);
    read_run(&run, &err);
    story_make(&story, &run, &err);
    ok(story.nattempts == 2 && !story.restart[0].was_killed, "without them, it was stopped");
    story_destroy(&story);
    curves_run_destroy(&run);
}

/* A start that was killed before the one before it had got: its steps end up among others. */
static void check_killed_twice(void)
{
    struct fsdp_err err;
    struct story story;
    struct run run;

    write_steps(file, "w", 1, 5, 1, 2);
    write_steps(file, "a", 6, 9, 3, 2);
    write_steps(redone, "w", 11, 13, 1, 2); /* cut by the resume from 10 */
    write_steps(redone, "a", 6, 10, 1, 2);  /* and by that from 5 */
    write_steps(redone, "a", 11, 12, 2, 2);
    read_run(&run, &err);
    story_make(&story, &run, &err);
    bool ordered = true;
    for (size_t i = 1; i < story.attempt[0].nrows; i++)
        ordered = ordered && story.attempt[0].row[i]->value[RUN_STEP] ==
                                 story.attempt[0].row[i - 1]->value[RUN_STEP] + 1;
    ok(story.nattempts == 3 && ordered && story.attempt[0].nrows == 13 &&
           story.attempt[0].nkept == 5,
       "a start that was cut twice is in order");
    ok(story.restart[0].was_killed && story.restart[1].was_killed &&
           story.restart[0].from->value[RUN_STEP] == 10 &&
           story.restart[1].from->value[RUN_STEP] == 5,
       "and each resume is where it was");
    story_destroy(&story);
    curves_run_destroy(&run);
    unlink(redone);
}

static void check_old_files(void)
{
    struct fsdp_err err;
    struct story story;
    struct run run;

    write_steps(file, "w", 1, 8, 0, 0);
    read_run(&run, &err);
    story_make(&story, &run, &err);
    ok(story.nattempts == 1 && story.attempt[0].nkept == 8, "a file without attempts is one start");
    story_destroy(&story);
    curves_run_destroy(&run);
    write_steps(file, "a", 6, 9, 0, 0);
    read_run(&run, &err);
    story_make(&story, &run, &err);
    ok(story.nattempts == 2 && story.restart[0].was_killed && story.attempt[0].nkept == 5,
       "unless its steps go back");
    story_destroy(&story);
    curves_run_destroy(&run);
}

static void check_bad_files(void)
{
    struct fsdp_err err;
    struct run run;

    put(file,
        "{\"step\": 1, \"loss\": 2}\nhello\n\n{\"loss\": 3}\n{\"step\": 2, \"loss\": null}\n{\"st");
    ok(!read_run(&run, &err) && run.nrows == 2 && run.nbad == 2 && run.ends_in_middle &&
           isnan(run.row[1].value[RUN_NFIXED]),
       "lines that are no metrics are counted, a line that is being written is not");
    curves_run_destroy(&run);
    put(file, "");
    ok(!read_run(&run, &err) && run.nrows == 0, "an empty file has no rows");
    curves_run_destroy(&run);
    unlink(file);
    ok(read_run(&run, &err) == FSDP_ENOTFOUND && strstr(err.text, file),
       "a missing one is an error");
    curves_run_destroy(&run);
    *(strrchr(file, '/')) = 0;
    ok(read_run(&run, &err) == FSDP_ENOTFOUND && strstr(err.text, "no metrics.jsonl"),
       "and so is a folder without one: %s", err.text);
    curves_run_destroy(&run);
    file[strlen(file)] = '/';
}

/* ---- charts ---------------------------------------------------------------------------------- */

static void check_chart(void)
{
    static const char *const keys[] = {"loss", "grad_norm"};
    struct fsdp_err err;
    struct run run;
    struct curves *curves = NULL;
    struct curves_ask ask = {.keys = keys, .nkeys = 2, .skip_empty = true};

    write_steps(file, "w", 1, 10, 1, 4);
    write_steps(file, "a", 11, 20, 2, 2);
    write_steps(redone, "w", 11, 13, 1, 4);
    read_run(&run, &err);
    ok(!curves_create(&curves, &run, 1, &ask, &err), "a run as a chart");
    const struct chart *chart = curves_chart(curves);
    ok(chart->npanels == 1, "a key without values has no panel");
    const struct chart_panel *panel = &chart->panels[0];
    ok(panel->nseries == 4 && panel->series[0].style == CHART_WIDE &&
           panel->series[0].npoints == 4 && panel->series[1].npoints == 13 &&
           panel->series[2].npoints == 10 && panel->series[1].colour != panel->series[2].colour,
       "the first start with its lost steps, broad; the second; held-out points");
    ok(panel->series[3].style == CHART_POINTS && panel->series[3].npoints == 5,
       "which are those of the steps that stayed");
    ok(chart->nmarkers == 2 &&
           !strcmp(chart->markers[0].label, "resumed from step 10 on 2 ranks") &&
           !strcmp(chart->markers[1].label, "killed at step 13") && chart->markers[0].x == 10 &&
           chart->markers[1].x == 13,
       "the kill and the resume are marked");
    curves_destroy(curves);

    ask.skip_empty = false;
    ok(curves_create(&curves, &run, 1, &ask, &err) == FSDP_EINVAL &&
           strstr(err.text, "'grad_norm'") && strstr(err.text, "step, loss, tokens"),
       "a key that was asked for and is not there is an error: %s", err.text);

    int nfailed = 0;
    ask.skip_empty = true;
    for (uint64_t nth = 1; nth < 200; nth++) {
        fsdp_alloc_fail_at(nth);
        const int rc = curves_create(&curves, &run, 1, &ask, &err);
        fsdp_alloc_fail_at(0);
        if (!rc) {
            curves_destroy(curves);
            break;
        }
        nfailed += rc == FSDP_ENOMEM;
    }
    ok(nfailed > 10, "every allocation may fail (%d did)", nfailed);
    curves_run_destroy(&run);
    unlink(redone);
}

static void check_thin(void)
{
    struct fsdp_err err;
    struct run run;

    write_steps(file, "w", 1, 100, 1, 4);
    read_run(&run, &err);
    run.row[41].value[RUN_NFIXED] = 99;
    run.row[42].value[RUN_NFIXED] = -99;
    curves_run_thin(&run, RUN_NFIXED);
    bool high = false, low = false, ordered = true;
    for (size_t i = 0; i < run.nrows; i++) {
        high = high || run.row[i].value[RUN_NFIXED] == 99;
        low = low || run.row[i].value[RUN_NFIXED] == -99;
        ordered = ordered && (!i || run.row[i].value[RUN_STEP] > run.row[i - 1].value[RUN_STEP]);
    }
    ok(run.nrows == 50 && high && low && ordered, "half of the rows, with the extremes, in order");
    curves_run_destroy(&run);
}

/* Writes n steps of a loss of 1 with one of 9 at step n / 3. */
static void write_long(int n, bool starts)
{
    FILE *to = fopen(file, "w");

    for (int step = 1; to && step <= n; step++) {
        fprintf(to, "{\"step\": %d, \"loss\": %d", step, step == n / 3 ? 9 : 1);
        if (starts)
            fprintf(to, ", \"attempt\": %d", step);
        fputs("}\n", to);
    }
    if (!to || fclose(to))
        abort();
}

static void check_long(void)
{
    enum { N = RUN_MAX_ROWS * 5 / 2 };
    static const char *const keys[] = {"loss"};
    struct fsdp_err err = FSDP_ERR_INIT;
    struct run run;
    bool high = false, ordered = true;

    write_long(N, false);
    curves_run_create(&run, keys, 1, &err);
    int rc = curves_run_read(&run, file, &err);
    for (size_t i = 0; i < run.nrows; i++) {
        high = high || run.row[i].value[RUN_NFIXED] == 9;
        ordered = ordered && (!i || run.row[i].value[RUN_STEP] > run.row[i - 1].value[RUN_STEP]);
    }
    ok(!rc && run.nrows <= RUN_MAX_ROWS && run.nrows > RUN_MAX_ROWS / 4 && high && ordered,
       "of %d lines %zu stay, with the peak, in order", N, run.nrows);
    ok(run.nrows && run.row[run.nrows - 1].value[RUN_STEP] == N, "with the last step");
    curves_run_destroy(&run);

    write_long(RUN_MAX_ROWS + 1, true);
    curves_run_create(&run, keys, 1, &err);
    rc = curves_run_read(&run, file, &err);
    ok(rc == FSDP_EINVAL && strstr(err.text, "was started more than"),
       "a start for each of as many steps: %s", err.text);
    curves_run_destroy(&run);
}

static void check_labels(void)
{
    static const struct {
        const char *path[3], *label[3];
    } cases[] = {
        {{"a/metrics.jsonl", "b/metrics.jsonl", "c/metrics.jsonl"}, {"a", "b", "c"}},
        {{"s/lr-1/x/m.jsonl", "s/lr-2/x/m.jsonl", "s/lr-2/y/m.jsonl"},
         {"lr-1/x", "lr-2/x", "lr-2/y"}},
        {{"one.jsonl", "two.jsonl", "d/one.jsonl"}, {"one.jsonl", "two.jsonl", "d/one.jsonl"}},
        {{"m.jsonl", "m.jsonl", "x/m.jsonl"}, {"m.jsonl", "m.jsonl", "x/m.jsonl"}},
    };
    struct fsdp_err err = FSDP_ERR_INIT;

    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        struct run runs[3] = {0};
        bool fine = true;
        for (int i = 0; i < 3; i++)
            runs[i].path = fsdp_strdup(cases[c].path[i], &err);
        curves_label(runs, 3, &err);
        for (int i = 0; i < 3; i++)
            fine = fine && !strcmp(runs[i].label, cases[c].label[i]);
        if (!ok(fine, "labels %s, %s, %s", cases[c].label[0], cases[c].label[1], cases[c].label[2]))
            diag("they are %s, %s, %s", runs[0].label, runs[1].label, runs[2].label);
        for (int i = 0; i < 3; i++)
            curves_run_destroy(&runs[i]);
    }
}

int main(void)
{
    if (!mkdtemp(dir))
        abort();
    snprintf(file, sizeof file, "%s/metrics.json", dir);
    snprintf(redone, sizeof redone, "%s.redone", file);
    check_lines();
    check_killed();
    check_killed_twice();
    check_old_files();
    check_chart();
    check_thin();
    check_long();
    check_labels();
    check_bad_files();
    unlink(file);
    rmdir(dir);
    return tap_done();
}
