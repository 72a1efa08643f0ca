/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Published training runs under the clock. Without arguments it is a test: it replays
 * tests/plan/published.tsv and fails where a source's median error has grown by more than a point
 * over tests/plan/published_errors.tsv, or misses the goals. Otherwise:
 *
 *   published FILE            id,predicted: tokens/s of a GPU, for rows with the same columns
 *   published --table FILE    errors by source, as in docs/results/plan.md
 *   published --errors FILE   published_errors.tsv anew
 *   published --fit FILE      fits the constants and prints them, with the medians of sources that
 *                             did not count in their own fit (minutes)
 *
 * (build/bin/tests/plan/published is another name of this program.)
 */
#include <stdlib.h>
#include <string.h>

#include "runs.h"
#include "tap.h"

enum { ROUNDS = 20, ROUNDS_WITHOUT = 5 };

/* ---- for a developer ------------------------------------------------------------------------- */

static int predict(struct runs *runs, const char *file, struct fsdp_err *err)
{
    (void)err;
    printf("id,predicted\n");
    for (int i = 0; i < runs->nrows; i++) {
        printf("%s,", runs->row[i].id);
        if (runs->predicted[i] > 0)
            printf("%.6g", runs->predicted[i]);
        else
            fprintf(stderr, "%s: row %s lacks %s\n", file, runs->row[i].id,
                    runs->lacks[i] ? runs->lacks[i] : runs_lacks(&runs->row[i]));
        printf("\n");
    }
    return FSDP_OK;
}

static int print_errors(struct runs *runs, const char *file, struct fsdp_err *err)
{
    const char *source;

    (void)file;
    (void)err;
    printf("source\trows\tmedian_pct\n");
    for (int k = 0; (source = runs_source(runs, k)); k++) {
        const struct runs_errors e = runs_errors(runs, source, RUNS_ALL);
        printf("%s\t%d\t%.1f\n", source, e.nrows, 100 * e.median);
    }
    return FSDP_OK;
}

static int print_table(struct runs *runs, const char *file, struct fsdp_err *err)
{
    (void)file;
    (void)err;
    runs_print(runs, stdout);
    return FSDP_OK;
}

/* How a source fares whose rows did not count. */
static int fit_without(struct runs *runs, struct fsdp_err *err)
{
    double best[RUNS_NCONSTANTS];
    const char *source;

    memcpy(best, runs->value, sizeof best);
    printf("\n| source that did not count | rows | median | mean | within 20 %% |\n"
           "| --- | --- | --- | --- | --- |\n");
    for (int k = 0; (source = runs_source(runs, k)); k++) {
        memcpy(runs->value, best, sizeof best);
        FSDP_TRY(runs_fit(runs, ROUNDS_WITHOUT, source, err));
        const struct runs_errors e = runs_errors(runs, source, RUNS_ALL);
        printf("| %s | %d | %.1f %% | %.1f %% | %.0f %% |\n", source, e.nrows, 100 * e.median,
               100 * e.mean, 100 * e.within_20);
        fflush(stdout);
    }
    memcpy(runs->value, best, sizeof best);
    return FSDP_OK;
}

static int fit(struct runs *runs, const char *file, struct fsdp_err *err)
{
    double before[RUNS_NCONSTANTS];

    (void)file;
    runs_constants(before);
    FSDP_TRY(runs_fit(runs, ROUNDS, NULL, err));
    runs_print(runs, stdout);
    printf("\n| constant | now | fitted |\n| --- | --- | --- |\n");
    for (int i = 0; i < RUNS_NCONSTANTS; i++)
        printf("| %s | %.3g | %.3g |\n", runs_constant_name((enum runs_constant)i), before[i],
               runs->value[i]);
    fflush(stdout);
    return fit_without(runs, err);
}

static int with_runs(int (*act)(struct runs *, const char *, struct fsdp_err *), const char *file)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct runs runs;
    int rc = runs_open(&runs, file, &err);

    if (rc == FSDP_OK)
        rc = runs_predict_all(&runs, &err);
    if (rc == FSDP_OK)
        rc = act(&runs, file, &err);
    if (rc)
        fprintf(stderr, "test_published: %s\n", err.text);
    runs_close(&runs);
    return rc ? 1 : 0;
}

/* ---- the test -------------------------------------------------------------------------------- */

static const char *path(char out[512], const char *name)
{
    const char *top = getenv("TOP");
    snprintf(out, 512, "%s/tests/plan/%s", top ? top : ".", name);
    return out;
}

/* Median of a source as it was recorded, in percent; -1: it is not there. */
static double recorded(const char *source)
{
    char name[512], line[256];
    FILE *from = fopen(path(name, "published_errors.tsv"), "r");
    double median = -1;

    while (from && fgets(line, sizeof line, from)) {
        char *tab = strchr(line, '\t'), *last = strrchr(line, '\t');
        if (tab && (size_t)(tab - line) == strlen(source) && !strncmp(line, source, strlen(source)))
            median = atof(last + 1);
    }
    if (from)
        fclose(from);
    return median;
}

static void test_sources(const struct runs *runs)
{
    const char *source;

    for (int k = 0; (source = runs_source(runs, k)); k++) {
        const struct runs_errors e = runs_errors(runs, source, RUNS_ALL);
        const double before = recorded(source);
        ok(before >= 0 && 100 * e.median <= before + 1,
           "%s: median error of %d rows %.1f %%, recorded %.1f %%", source, e.nrows, 100 * e.median,
           before);
    }
}

static void test_goals(const struct runs *runs)
{
    const struct runs_errors fsdp = runs_errors(runs, NULL, RUNS_FSDP);
    const struct runs_errors own = runs_errors(runs, NULL, RUNS_OWN);
    const struct runs_errors foreign = runs_errors(runs, NULL, RUNS_FOREIGN);

    ok(fsdp.nrows > 200 && fsdp.median <= .04,
       "FSDP: median error of %d rows %.1f %%, at most 4 %%", fsdp.nrows, 100 * fsdp.median);
    ok(own.nrows > 250 && own.median <= .08 && own.within_20 >= .9,
       "tp = pp = cp = 1: median error of %d rows %.1f %%, %.0f %% within 20 %%", own.nrows,
       100 * own.median, 100 * own.within_20);
    ok(foreign.nrows > 50 && foreign.median <= .1,
       "by formula: median error of %d rows %.1f %%, at most 10 %%", foreign.nrows,
       100 * foreign.median);
}

/* Words that no table has, columns that are missing, rows that cannot be planned. */
static void test_strange(void)
{
    const char *tmp = getenv("TEST_TMP");
    char file[512];
    struct fsdp_err err = FSDP_ERR_INIT;
    struct runs runs;

    snprintf(file, sizeof file, "%s/strange.csv", tmp ? tmp : "/tmp");
    FILE *to = fopen(file, "w");
    if (!ok(to != NULL, "a file"))
        return;
    fputs(
        "id,stack,gpu,attn,precision,d_model,layers,heads,ffn,gpus,seq,\"a \"\"note\"\", quoted\"\n"
        "1,new,X900,magic,int3,4096,32,32,11008,16,4096,\"one, two\"\n"
        "2,compile,NVIDIA H200,fa3,fp8,4096,32,32,11008,16,4096,\n"
        "3,compile,h100,fa3,bf16,,,,,16,4096,\n"
        "4,compile,h100,fa3,bf16,4096,32,32,11008,,4096,\n"
        "5,compile,h100,fa3,bf16,4096,32,32,11008,16,4096\n",
        to);
    fclose(to);
    ok(!runs_open(&runs, file, &err) && !runs_predict_all(&runs, &err) && runs.nrows == 5,
       "unknown words and missing columns: %s", err.text);
    ok(runs.predicted[0] > 100 && runs.predicted[0] < 1e5, "a row of unknown words: %.0f",
       runs.predicted[0]);
    ok(runs.predicted[1] > runs.predicted[4] && runs.predicted[4] > runs.predicted[0],
       "fp8 before bf16 before what is unknown");
    ok(runs.predicted[2] == 0 && runs.predicted[3] == 0,
       "no prediction without dimensions or GPUs");
    runs_close(&runs);
    ok(runs_open(&runs, "/nonexistent.csv", &err) && strstr(err.text, "/nonexistent.csv"),
       "a file that is not there: %s", err.text);
    runs_close(&runs);
}

static int test(void)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct runs runs;
    char name[512];

    if (ok(!runs_open(&runs, path(name, "published.tsv"), &err) && !runs_predict_all(&runs, &err),
           "published runs are planned: %s", err.text)) {
        test_sources(&runs);
        test_goals(&runs);
    }
    runs_close(&runs);
    test_strange();
    return tap_done();
}

int main(int argc, char **argv)
{
    static const struct {
        const char *option;
        int (*act)(struct runs *, const char *, struct fsdp_err *);
    } modes[] = {{"--table", print_table}, {"--errors", print_errors}, {"--fit", fit}};

    for (size_t i = 0; argc == 3 && i < sizeof modes / sizeof modes[0]; i++)
        if (!strcmp(argv[1], modes[i].option))
            return with_runs(modes[i].act, argv[2]);
    if (argc == 2)
        return with_runs(predict, argv[1]);
    if (argc > 2) {
        fprintf(stderr, "test_published: [--table | --errors | --fit] FILE, or nothing to test\n");
        return 2;
    }
    return test();
}
