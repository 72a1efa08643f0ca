/* SPDX-License-Identifier: Apache-2.0 */
/* Mixtures: shares at every prefix, each source in its own order, every row a function of its
 * number. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "data/mix.h"
#include "data/mixture.h"
#include "tap.h"

enum { MAX = 64 };
static struct fsdp_err err = FSDP_ERR_INIT;

/* The largest distance of a source's count from its share over all prefixes; -1: a row is not what
 * the counts say. */
static double farthest(const double *weights, int n, uint64_t nrows)
{
    uint64_t counts[MAX] = {0}, told[MAX];
    struct data_mix *mix;
    double sum = 0, most = 0;

    if (data_mix_create(&mix, weights, n, &err))
        abort();
    for (int i = 0; i < n; i++)
        sum += weights[i];
    for (uint64_t row = 0; row < nrows && most >= 0; row++) {
        int source;
        uint64_t source_row;
        data_mix_at(mix, row, &source, &source_row);
        if (source < 0 || source >= n || source_row != counts[source]++)
            most = -2;
        if (row % 97 == 0 || row + 1 == nrows) {
            data_mix_counts(mix, row + 1, told);
            most = memcmp(told, counts, (size_t)n * sizeof *told) ? -2 : most;
        }
        for (int i = 0; i < n; i++)
            most = most < 0
                       ? -1
                       : fmax(most, fabs((double)counts[i] - (double)(row + 1) * weights[i] / sum));
    }
    data_mix_destroy(mix);
    return most;
}

static void check_shares(void)
{
    static const struct {
        int n;
        double weights[8], most;
    } cases[] = {{1, {3}, 1e-9},
                 {2, {1, 1}, 0.5},
                 {2, {0.9, 0.1}, 0.5},
                 {2, {1e6, 1}, 0.5},
                 {3, {0.5, 0.49, 0.01}, 1},
                 {3, {0.7, 0.2, 0.1}, 1},
                 {5, {0.5, 0.25, 0.125, 0.0625, 0.0625}, 1},
                 {8, {8, 7, 6, 5, 4, 3, 2, 1}, 1},
                 {7, {1, 1, 1, 1, 1, 1, 1}, 1}};
    double weights[MAX], most = 0;

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const double far = farthest(cases[i].weights, cases[i].n, 20000);
        ok(far >= 0 && far <= cases[i].most + 1e-6, "%d sources: at most %.3f rows from the share",
           cases[i].n, far);
    }
    srand(5);
    for (int round = 0; round < 200; round++) {
        const int n = 2 + rand() % (MAX - 2);
        for (int i = 0; i < n; i++)
            weights[i] = exp(6.0 * rand() / RAND_MAX);
        const double far = farthest(weights, n, 3000);
        most = far < 0 || most < 0 ? -1 : fmax(most, far);
    }
    ok(most > 0 && most < 2, "200 random mixtures: at most %.3f rows from the share", most);
}

static void check_far(void)
{
    static const double weights[] = {0.6, 0.3, 0.1};
    const uint64_t far = UINT64_C(1) << 50;
    uint64_t counts[3], source_row;
    struct data_mix *mix;
    int source;

    if (data_mix_create(&mix, weights, 3, &err))
        abort();
    data_mix_counts(mix, far, counts);
    data_mix_at(mix, far, &source, &source_row);
    ok(counts[0] + counts[1] + counts[2] == far && source_row == counts[source] &&
           fabs((double)counts[2] / (double)far - 0.1) < 1e-11,
       "row 2^50 is found without those before it");
    data_mix_destroy(mix);
    ok(data_mix_create(&mix, (const double[]){1, 0}, 2, &err) == FSDP_EINVAL &&
           data_mix_create(&mix, (const double[]){1, -1}, 2, &err) == FSDP_EINVAL &&
           data_mix_create(&mix, (const double[]){INFINITY, 1}, 2, &err) == FSDP_EINVAL &&
           data_mix_create(&mix, weights, 0, &err) == FSDP_EINVAL,
       "refused: %s", err.text);
}

/* ---- rows of files -------------------------------------------------------------------------- */

enum { SEQ = 4, NSOURCES = 3 };
static char dir[] = "/tmp/test_mix_XXXXXX";

/* Source i: rows of the byte 'a' + i + 3 * row, as text, or lines for the last one. */
static struct data *open_source(int i, int nrows, bool shuffle, uint64_t seed)
{
    struct data_opts opts = DATA_OPTS_INIT;
    struct data *data;
    char path[100];

    snprintf(path, sizeof path, "%s/%d", dir, i);
    FILE *out = fopen(path, "w");
    for (int row = 0; row < nrows; row++) {
        char text[SEQ + 2] = "";
        memset(text, 'A' + i * 20 + row, SEQ + 1);
        fprintf(out, i == 2 ? "{\"text\": \"%s\"}\n" : "%s", text);
    }
    fclose(out);
    const char *paths[] = {path};
    opts.npaths = 1;
    opts.paths = paths;
    opts.seq_len = SEQ;
    opts.format = i == 2 ? DATA_JSONL : DATA_TEXT;
    opts.layout = i == 2 || shuffle ? DATA_STREAM : DATA_ROWS;
    opts.shuffle = shuffle;
    opts.seed = seed;
    if (data_open(&data, &opts, &err))
        abort();
    return data;
}

static const int rows_of[NSOURCES] = {10, 4, 6};

static struct data_mixture *open_mixture(const double *weights, const double *passes, uint64_t seed)
{
    struct data *sources[NSOURCES];
    struct data_mixture *m;

    for (int i = 0; i < NSOURCES; i++)
        sources[i] = open_source(i, rows_of[i], i == 2, data_mixture_seed(seed, i));
    if (data_mixture_create(&m, sources, NSOURCES, weights, passes, &err))
        abort();
    return m;
}

/* The first letter of a row; 0: the row is not whole. */
static int letter(struct data_mixture *m, uint64_t row)
{
    int32_t tokens[SEQ + 1], labels[SEQ], starts[SEQ];
    bool whole = !data_mixture_row(m, row, &(struct data_row){tokens, labels, starts, NULL}, &err);

    for (int t = 0; whole && t < SEQ; t++)
        whole = tokens[t] == tokens[0] && labels[t] == tokens[0] && starts[t] == 0;
    return whole ? tokens[0] : 0;
}

static void check_rows(void)
{
    static const double weights[] = {1, 1, 2}, passes[] = {1, 2.5, 0.5};
    int seen[NSOURCES] = {0}, taken[128] = {0}, order[2][6];
    struct data_mixture *m = open_mixture(weights, NULL, 7), *other;
    bool right = data_mixture_has_labels(m) && data_mixture_nsources(m) == NSOURCES, moved = false;
    uint64_t counts[NSOURCES];

    for (uint64_t row = 0; row < 24; row++) {
        const int at = letter(m, row) - 'A', i = at / 20;
        right &= at >= 0 && i < NSOURCES && at % 20 < rows_of[i];
        if (!right)
            break;
        if (i < 2) /* as they stand, and again from the start */
            right &= at % 20 == seen[i] % rows_of[i];
        else
            order[seen[i] / 6][seen[i] % 6] = at % 20;
        seen[i]++;
        taken[at]++;
    }
    for (int k = 0; k < 6; k++) {
        right &= taken[40 + k] == 2;
        moved |= order[0][k] != order[1][k];
    }
    ok(right && seen[0] == 6 && seen[1] == 6 && seen[2] == 12, "rows of three sources by weight");
    ok(moved, "each pass of a source has an order of its own");
    const uint64_t hash = data_mixture_hash(m);
    data_mixture_close(m);

    m = open_mixture((const double[]){1, 1, 3}, NULL, 7);
    other = open_mixture(weights, NULL, 7);
    ok(data_mixture_hash(m) != hash && data_mixture_hash(other) == hash,
       "other weights are other data");
    data_mixture_close(m);
    data_mixture_close(other);

    m = open_mixture(NULL, passes, 7);
    data_mixture_counts(m, data_mixture_nrows(m), counts);
    ok(data_mixture_nrows(m) == 23 && counts[0] == 10 && counts[1] == 10 && counts[2] == 3,
       "passes: each source so many times");
    data_mixture_close(m);
    m = open_mixture(NULL, NULL, 7);
    data_mixture_counts(m, data_mixture_nrows(m), counts);
    ok(data_mixture_nrows(m) == 20 && counts[0] == 10 && counts[1] == 4 && counts[2] == 6,
       "neither: each source once");
    data_mixture_close(m);
}

static void check_memory(void)
{
    struct data *sources[NSOURCES];
    struct data_mixture *m;
    bool all = true;

    for (uint64_t nth = 1; nth <= 5; nth++) {
        for (int i = 0; i < NSOURCES; i++)
            sources[i] = open_source(i, rows_of[i], true, 1);
        fsdp_alloc_fail_at(nth);
        all &= data_mixture_create(&m, sources, NSOURCES, NULL, NULL, &err) == FSDP_ENOMEM;
    }
    fsdp_alloc_fail_at(0);
    ok(all, "each of 5 allocations may fail");
}

int main(void)
{
    char command[64];

    if (!mkdtemp(dir))
        return 1;
    check_shares();
    check_far();
    check_rows();
    check_memory();
    snprintf(command, sizeof command, "rm -rf %s", dir);
    ok(system(command) == 0, "cleaned up");
    return tap_done();
}
