/* SPDX-License-Identifier: Apache-2.0 */
/* Mixtures of experts: who goes where, and how even that is. */
#include <math.h>

#include "cpu.h"

/* ---- routing --------------------------------------------------------------------------------- */

/* Returns the log of the sum. */
static float softmax(float *probs, const float *logits, size_t nelem)
{
    const float most = nn_max(logits, nelem);
    double sum = 0;

    for (size_t i = 0; i < nelem; i++)
        sum += probs[i] = expf(logits[i] - most);
    for (size_t i = 0; i < nelem; i++)
        probs[i] = (float)(probs[i] / sum);
    return (float)(most + log(sum));
}

static bool is_chosen(const int32_t *expert, int n, int32_t e)
{
    for (int k = 0; k < n; k++)
        if (expert[k] == e)
            return true;
    return false;
}

/* Choice k of a row, after those before it. */
static int32_t choose(const float *probs, int experts, const int32_t *expert, int k)
{
    int32_t best = -1;

    for (int32_t e = 0; e < experts; e++)
        if ((best < 0 || probs[e] > probs[best]) && !is_chosen(expert, k, e))
            best = e;
    return best;
}

static void route_row(const struct nn_route *a, size_t row)
{
    const size_t E = (size_t)a->experts, K = (size_t)a->chosen;
    float *probs = a->probs + row * E, *weight = a->weight + row * K, sum = 0;
    int32_t *expert = a->expert + row * K;

    if (a->dtype == FSDP_F32)
        a->lse[row] = softmax(probs, (const float *)a->logits + row * E, E);
    else {
        fsdp_cpu_convert(probs, FSDP_F32, nn_at(a->logits, a->dtype, row * E), a->dtype, E);
        a->lse[row] = softmax(probs, probs, E);
    }
    for (int k = 0; k < a->chosen; k++) {
        expert[k] = choose(probs, a->experts, expert, k);
        sum += weight[k] = probs[expert[k]];
    }
    for (size_t k = 0; k < K && a->normalized; k++)
        weight[k] /= sum;
}

static void route_rows(void *arg, int worker, size_t from, size_t to)
{
    (void)worker;
    for (size_t row = from; row < to; row++)
        route_row(arg, row);
}

static void route_forward(struct nn_route *a)
{
    fsdp_cpu_for((size_t)a->rows, 64, route_rows, a);
}

/* The gradient of probability e of a row. */
static float dprob(const struct nn_route_backward *a, size_t row, int32_t e, float sum, float mean)
{
    const size_t K = (size_t)a->chosen;
    const int32_t *expert = a->expert + row * K;
    float d = a->balance && row < (size_t)a->counted ? a->balance[e] : 0;

    for (size_t k = 0; k < K; k++)
        if (expert[k] == e)
            d += a->normalized ? (a->dweight[row * K + k] - mean) / sum : a->dweight[row * K + k];
    return d;
}

/* That of the z-loss by a row's logits, over their probabilities. */
static float z_slope(const struct nn_route_backward *a, size_t row)
{
    return a->z_loss > 0 && row < (size_t)a->counted
               ? 2 * a->z_loss * a->lse[row] * (a->loss_scale ? *a->loss_scale : 1)
               : 0;
}

static void route_row_backward(const struct nn_route_backward *a, size_t row)
{
    const size_t E = (size_t)a->experts, K = (size_t)a->chosen;
    const float *probs = a->probs + row * E, z = z_slope(a, row);
    float sum = 0, mean = 0, room[NN_PIECE];
    double inner = 0;

    for (size_t k = 0; k < K; k++) {
        sum += probs[a->expert[row * K + k]];
        mean += a->dweight[row * K + k] * a->weight[row * K + k];
    }
    for (size_t e = 0; e < E; e++)
        inner += (double)probs[e] * dprob(a, row, (int32_t)e, sum, mean);
    for (size_t from = 0; from < E; from += NN_PIECE) {
        const size_t n = E - from < NN_PIECE ? E - from : NN_PIECE;
        float *out = nn_piece(a->dlogits, a->dtype, row * E + from, room);
        for (size_t i = 0; i < n; i++) {
            const float d = dprob(a, row, (int32_t)(from + i), sum, mean);
            out[i] = probs[from + i] * (d - (float)inner + z);
        }
        nn_write(a->dlogits, a->dtype, row * E + from, n, out);
    }
}

static void route_rows_backward(void *arg, int worker, size_t from, size_t to)
{
    (void)worker;
    for (size_t row = from; row < to; row++)
        route_row_backward(arg, row);
}

static void route_backward(struct nn_route_backward *a)
{
    fsdp_cpu_for((size_t)a->rows, 64, route_rows_backward, a);
}

/* ---- order and load -------------------------------------------------------------------------- */

static void expert_order(const struct nn_expert_order *a)
{
    const int nslots = a->rows * a->chosen;
    int32_t *first = a->first;

    /* first[e + 1] counts, then begins, and at the end is where the next expert's begin. */
    memset(first, 0, ((size_t)a->experts + 1) * sizeof *first);
    for (int s = 0; s < nslots; s++)
        if (a->expert[s] + 2 <= a->experts)
            first[a->expert[s] + 2]++;
    for (int e = 2; e <= a->experts; e++)
        first[e] += first[e - 1];
    for (int32_t s = 0; s < nslots; s++) {
        const int32_t at = first[a->expert[s] + 1]++;
        a->slot[at] = s;
        a->place[s] = at;
    }
}

static void expert_load(const struct nn_expert_load *a)
{
    for (int s = 0; s < a->rows * a->chosen; s++)
        a->counts[a->expert[s]]++;
    for (int e = 0; e < a->experts; e++) {
        double sum = a->sums[e];
        for (int r = 0; r < a->rows; r++)
            sum += a->probs[(size_t)r * (size_t)a->experts + (size_t)e];
        a->sums[e] = sum;
    }
    for (int r = 0; r < a->rows; r++)
        *a->squares += (double)a->lse[r] * a->lse[r];
}

static void balance(const struct nn_balance *a)
{
    const int E = a->experts, nelem = a->layers * E;
    double n = 0, loss = 0;

    for (int i = 0; i < nelem; i++) {
        n += a->counts[i];
        if (a->total)
            a->total[i] += a->counts[i];
    }
    n = n > 0 ? n / a->chosen : 1;
    for (int e = 0; e < E; e++) {
        double count = 0;
        for (int l = 0; l < a->layers; l++)
            count += a->counts[l * E + e];
        const double slope = a->scale * E * (count / n) / n;
        loss += slope * a->sums[e];
        if (a->balance)
            a->balance[e] = (float)(slope * a->coef * (a->loss_scale ? *a->loss_scale : 1));
    }
    if (a->loss)
        *a->loss += loss;
    if (a->z_loss)
        *a->z_loss += a->z_scale * *a->squares;
}

NN_CPU_ENQUEUE(route_forward, nn_route)
NN_CPU_ENQUEUE(route_backward, nn_route_backward)
NN_CPU_ENQUEUE(expert_order, nn_expert_order)
NN_CPU_ENQUEUE(expert_load, nn_expert_load)
NN_CPU_ENQUEUE(balance, nn_balance)
