/* SPDX-License-Identifier: Apache-2.0 */
/* What Muon is made of, on the CPU: its elements, and products of matrices in fp32. */
#include "cpu.h"
#include "device/common/formula.h"
#include "fsdp/sys/cpu.h"

/* ---- a rank's rows --------------------------------------------------------------------------- */

static int begin_run(void *arg, struct fsdp_err *err)
{
    const struct fsdp_muon_args *a = arg;
    const float scale = a->grad_scale ? *a->grad_scale : 1.0f;

    (void)err;
    for (size_t i = 0; (!a->loss_scale || !a->loss_scale->skip) && i < a->nelem; i++)
        a->rows[i] = (double)muon_element(a, &a->momentum_buffer[i], a->grad[i] * scale);
    return FSDP_OK;
}

int device_cpu_muon_begin(void *lane, const struct fsdp_muon_args *args, struct fsdp_err *err)
{
    return device_cpu_lane_call(lane, begin_run, args, sizeof *args, err);
}

static int end_run(void *arg, struct fsdp_err *err)
{
    const struct fsdp_muon_args *a = arg;

    (void)err;
    for (size_t i = 0; (!a->loss_scale || !a->loss_scale->skip) && i < a->nelem; i++)
        a->master[i] = a->master[i] * a->keep - a->rate * (float)a->rows[i];
    return FSDP_OK;
}

int device_cpu_muon_end(void *lane, const struct fsdp_muon_args *args, struct fsdp_err *err)
{
    return device_cpu_lane_call(lane, end_run, args, sizeof *args, err);
}

/* ---- the whole matrix ------------------------------------------------------------------------ */

static int unit_run(void *arg, struct fsdp_err *err)
{
    const struct fsdp_muon_matrix *a = arg;
    const bool tall = a->rows > a->cols;
    double sum = 0;

    (void)err;
    for (size_t i = 0; i < a->rows * a->cols; i++)
        sum += a->wide[i] * a->wide[i];
    const float norm = muon_scale(sum);
    for (size_t r = 0; r < a->rows; r++)
        for (size_t c = 0; c < a->cols; c++)
            a->x[tall ? c * a->rows + r : r * a->cols + c] = (float)a->wide[r * a->cols + c] / norm;
    return FSDP_OK;
}

int device_cpu_muon_unit(void *lane, const struct fsdp_muon_matrix *args, struct fsdp_err *err)
{
    return device_cpu_lane_call(lane, unit_run, args, sizeof *args, err);
}

static int back_run(void *arg, struct fsdp_err *err)
{
    const struct fsdp_muon_matrix *a = arg;
    const bool tall = a->rows > a->cols;

    (void)err;
    for (size_t r = 0; r < a->rows; r++)
        for (size_t c = 0; c < a->cols; c++)
            a->wide[r * a->cols + c] = (double)a->x[tall ? c * a->rows + r : r * a->cols + c];
    return FSDP_OK;
}

int device_cpu_muon_back(void *lane, const struct fsdp_muon_matrix *args, struct fsdp_err *err)
{
    return device_cpu_lane_call(lane, back_run, args, sizeof *args, err);
}

/* ---- products -------------------------------------------------------------------------------- */

FSDP_CPU_CLONES static void add_row(float *restrict c, const float *restrict b, float factor,
                                    size_t n)
{
    for (size_t i = 0; i < n; i++)
        c[i] += factor * b[i];
}

/* In an order that follows from n alone. */
FSDP_CPU_CLONES static float dot(const float *restrict a, const float *restrict b, size_t n)
{
    enum { LANES = 16 };
    float part[LANES] = {0}, sum = 0;
    size_t i = 0;

    for (; i + LANES <= n; i += LANES)
        for (size_t k = 0; k < LANES; k++)
            part[k] += a[i + k] * b[i + k];
    for (; i < n; i++)
        sum += a[i] * b[i];
    for (size_t k = 0; k < LANES; k++)
        sum += part[k];
    return sum;
}

static void multiply_row(const struct fsdp_matmul_args *p, size_t row)
{
    float *c = p->c + row * p->cols;
    const float *a = p->a + row * p->inner, *add = p->beta == 0 ? NULL : p->add + row * p->cols;

    for (size_t j = 0; j < p->cols; j++)
        c[j] = p->beta == 0 ? 0 : p->beta * add[j];
    for (size_t k = 0; !p->b_transposed && k < p->inner; k++)
        add_row(c, p->b + k * p->cols, p->alpha * a[k], p->cols);
    for (size_t j = 0; p->b_transposed && j < p->cols; j++)
        c[j] += p->alpha * dot(a, p->b + j * p->inner, p->inner);
}

static void multiply_part(void *arg, int worker, size_t from, size_t to)
{
    (void)worker;
    for (size_t row = from; row < to; row++)
        multiply_row(arg, row);
}

static int matmul_run(void *arg, struct fsdp_err *err)
{
    (void)err;
    fsdp_cpu_for(((const struct fsdp_matmul_args *)arg)->rows, 1, multiply_part, arg);
    return FSDP_OK;
}

int device_cpu_matmul(void *lane, const struct fsdp_matmul_args *args, struct fsdp_err *err)
{
    return device_cpu_lane_call(lane, matmul_run, args, sizeof *args, err);
}
