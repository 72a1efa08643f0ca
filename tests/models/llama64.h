/* SPDX-License-Identifier: Apache-2.0 */
/*
 * llama64.h: a Llama of any shape, AdamW and SGD in double precision, from the papers' formulas, as
 * plain loops. It shares no code with what is tested. A pass is a tape of nodes, each of which
 * knows how to send its gradient to its inputs; the tape is walked once in either direction.
 */
#ifndef LLAMA64_H
#define LLAMA64_H

#include "ref_files.h"

enum { L64_MAX_PARAMS = 48, L64_MAX_NODES = 96, L64_MAX_T = 64, L64_IGNORE = -100 };

/* vocabulary, width, width of the MLP, of a head; numbers of heads, of heads of keys, of layers */
struct l64_shape {
    int V, C, F, D, NH, NKV, layers;
    bool tied;
    double eps, theta;
};
/* tests/data/llama-tiny */
static const struct l64_shape l64_tiny = {256, 64, 176, 16, 4, 2, 2, false, 1e-5, 10000};

struct l64_optim {
    bool sgd, nesterov, decay_all, clip_inf; /* decay_all: vectors, too */
    double beta1, beta2, eps, momentum, dampening, weight_decay;
    double clip; /* 0: none */
};
/* The engine's */
static const struct l64_optim l64_defaults = {
    .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .momentum = 0.9, .weight_decay = 0.1, .clip = 1};

/* rows x cols values and the gradient of the loss by them. */
struct l64 {
    int rows, cols, T;
    double *v, *g;
    const int32_t *tokens, *starts; /* starts NULL: a row is one document */
    const struct l64_shape *shape;
    struct l64 *in[3];
    void (*back)(struct l64 *self);
};

struct l64_param {
    struct l64 w;
    char name[80];
    double *m1, *m2, *first; /* moments (SGD's is m1); the value at the start */
    /* Where a parameter has settings of its own; own false: the optimizer's. */
    bool frozen, own;
    double lr_scale, weight_decay, beta1, beta2;
};

struct l64_model {
    struct l64_param param[L64_MAX_PARAMS];
    struct l64 tape[L64_MAX_NODES];
    struct l64_shape shape;
    struct l64_optim optim;
    int nparams, nnodes, step;
};

static inline double *l64_zeros(int rows, int cols)
{
    return calloc((size_t)rows * (size_t)cols, sizeof(double));
}

static inline struct l64 *l64_node(struct l64_model *m, int rows, int cols,
                                   void (*back)(struct l64 *), struct l64 *in0, struct l64 *in1)
{
    struct l64 *n = &m->tape[m->nnodes++];
    *n = (struct l64){
        .rows = rows, .cols = cols, .shape = &m->shape, .in = {in0, in1}, .back = back};
    n->v = l64_zeros(rows, cols);
    n->g = l64_zeros(rows, cols);
    return n;
}

static inline struct l64_param *l64_find(struct l64_model *m, const char *name)
{
    for (int i = 0; i < m->nparams; i++)
        if (!strcmp(m->param[i].name, name))
            return &m->param[i];
    return NULL;
}

/* ---- operators: y[r, c] and, where dy is given, dx += ... ------------------------------------ */

static inline void l64_embed_back(struct l64 *y)
{
    for (int r = 0; r < y->rows; r++)
        for (int c = 0; c < y->cols; c++)
            y->in[0]->g[y->tokens[r] * y->cols + c] += y->g[r * y->cols + c];
}

static inline struct l64 *l64_embed(struct l64_model *m, struct l64 *w, const int32_t *tokens,
                                    int rows)
{
    struct l64 *y = l64_node(m, rows, w->cols, l64_embed_back, w, NULL);
    y->tokens = tokens;
    for (int r = 0; r < rows; r++)
        memcpy(y->v + r * w->cols, w->v + tokens[r] * w->cols, (size_t)w->cols * sizeof(double));
    return y;
}

static inline void l64_add_back(struct l64 *y)
{
    for (int i = 0; i < y->rows * y->cols; i++) {
        y->in[0]->g[i] += y->g[i];
        y->in[1]->g[i] += y->g[i];
    }
}

static inline struct l64 *l64_add(struct l64_model *m, struct l64 *a, struct l64 *b)
{
    struct l64 *y = l64_node(m, a->rows, a->cols, l64_add_back, a, b);
    for (int i = 0; i < y->rows * y->cols; i++)
        y->v[i] = a->v[i] + b->v[i];
    return y;
}

/* y = x wᵀ */
static inline void l64_linear_back(struct l64 *y)
{
    struct l64 *x = y->in[0], *w = y->in[1];
    for (int r = 0; r < y->rows; r++)
        for (int o = 0; o < y->cols; o++)
            for (int i = 0; i < x->cols; i++) {
                x->g[r * x->cols + i] += y->g[r * y->cols + o] * w->v[o * x->cols + i];
                w->g[o * x->cols + i] += y->g[r * y->cols + o] * x->v[r * x->cols + i];
            }
}

static inline struct l64 *l64_linear(struct l64_model *m, struct l64 *x, struct l64 *w)
{
    struct l64 *y = l64_node(m, x->rows, w->rows, l64_linear_back, x, w);
    for (int r = 0; r < y->rows; r++)
        for (int o = 0; o < y->cols; o++)
            for (int i = 0; i < x->cols; i++)
                y->v[r * y->cols + o] += x->v[r * x->cols + i] * w->v[o * x->cols + i];
    return y;
}

/* 1 / sqrt(mean(x²) + eps) */
static inline double l64_rstd(const double *x, int dim, double eps)
{
    double sum = 0;
    for (int c = 0; c < dim; c++)
        sum += x[c] * x[c];
    return 1 / sqrt(sum / dim + eps);
}

/* y = x rstd w; drstd/dx = -rstd³ x / dim */
static inline void l64_rmsnorm_back(struct l64 *y)
{
    struct l64 *x = y->in[0], *w = y->in[1];
    for (int r = 0; r < y->rows; r++) {
        const double *xr = x->v + r * x->cols, *dy = y->g + r * x->cols;
        double rstd = l64_rstd(xr, x->cols, y->shape->eps), dot = 0;
        for (int c = 0; c < x->cols; c++) {
            w->g[c] += dy[c] * xr[c] * rstd;
            dot += dy[c] * w->v[c] * xr[c];
        }
        for (int c = 0; c < x->cols; c++)
            x->g[r * x->cols + c] +=
                dy[c] * w->v[c] * rstd - dot * rstd * rstd * rstd * xr[c] / x->cols;
    }
}

static inline struct l64 *l64_rmsnorm(struct l64_model *m, struct l64 *x, struct l64 *w)
{
    struct l64 *y = l64_node(m, x->rows, x->cols, l64_rmsnorm_back, x, w);
    for (int r = 0; r < y->rows; r++) {
        double rstd = l64_rstd(x->v + r * x->cols, x->cols, m->shape.eps);
        for (int c = 0; c < x->cols; c++)
            y->v[r * x->cols + c] = x->v[r * x->cols + c] * rstd * w->v[c];
    }
    return y;
}

/* Place of row r in its sequence, and of the first of its document. */
static inline int l64_place(const struct l64 *y, int r)
{
    return r % y->T;
}

static inline int l64_start(const struct l64 *y, int r)
{
    return y->starts ? y->starts[r] : 0;
}

/* out += in, each pair (i, i + D/2) of each head turned by t theta^(-2i/D), or back. */
static inline void l64_turn(double *out, const double *in, const struct l64 *y, double sign)
{
    const int D = y->shape->D;
    for (int r = 0; r < y->rows; r++)
        for (int h = 0; h < y->cols / D; h++)
            for (int i = 0; i < D / 2; i++) {
                const int at = r * y->cols + h * D + i, other = at + D / 2;
                const int t = l64_place(y, r) - l64_start(y, r);
                double angle = t * pow(y->shape->theta, -2.0 * i / D);
                double cosine = cos(angle), sine = sign * sin(angle);
                out[at] += in[at] * cosine - in[other] * sine;
                out[other] += in[other] * cosine + in[at] * sine;
            }
}

static inline void l64_rope_back(struct l64 *y)
{
    l64_turn(y->in[0]->g, y->g, y, -1);
}

static inline struct l64 *l64_rope(struct l64_model *m, struct l64 *x, int T, const int32_t *starts)
{
    struct l64 *y = l64_node(m, x->rows, x->cols, l64_rope_back, x, NULL);
    y->T = T;
    y->starts = starts;
    l64_turn(y->v, x->v, y, 1);
    return y;
}

/* Probabilities of query row r and head h over the keys of its document up to itself: their number.
 * *key is the first one's row. */
static inline int l64_attend(double *p, int *key, const struct l64 *y, int r, int h)
{
    const struct l64 *q = y->in[0], *k = y->in[1];
    const int D = y->shape->D, hk = h / (y->shape->NH / y->shape->NKV);
    const int n = l64_place(y, r) - l64_start(y, r) + 1;
    double sum = 0;
    *key = r - n + 1;
    for (int j = 0; j < n; j++) {
        double dot = 0;
        for (int d = 0; d < D; d++)
            dot += q->v[r * q->cols + h * D + d] * k->v[(*key + j) * k->cols + hk * D + d];
        p[j] = exp(dot / sqrt(D)); /* weights are small: nothing overflows a double */
        sum += p[j];
    }
    for (int j = 0; j < n; j++)
        p[j] /= sum;
    return n;
}

static inline void l64_attention_back(struct l64 *y)
{
    struct l64 *q = y->in[0], *k = y->in[1], *v = y->in[2];
    const int D = y->shape->D, NH = y->shape->NH;
    for (int r = 0; r < y->rows; r++)
        for (int h = 0; h < NH; h++) {
            double p[L64_MAX_T], dp[L64_MAX_T], mean = 0;
            int first, n = l64_attend(p, &first, y, r, h), hk = h / (NH / y->shape->NKV);
            const int at = r * q->cols + h * D;
            for (int j = 0; j < n; j++) {
                const int other = (first + j) * k->cols + hk * D;
                dp[j] = 0;
                for (int d = 0; d < D; d++) {
                    dp[j] += y->g[at + d] * v->v[other + d];
                    v->g[other + d] += p[j] * y->g[at + d];
                }
                mean += p[j] * dp[j];
            }
            for (int j = 0; j < n; j++) {
                const int other = (first + j) * k->cols + hk * D;
                const double ds = p[j] * (dp[j] - mean) / sqrt(D);
                for (int d = 0; d < D; d++) {
                    q->g[at + d] += ds * k->v[other + d];
                    k->g[other + d] += ds * q->v[at + d];
                }
            }
        }
}

static inline struct l64 *l64_attention(struct l64_model *m, struct l64 *q, struct l64 *k,
                                        struct l64 *v, int T, const int32_t *starts)
{
    struct l64 *y = l64_node(m, q->rows, q->cols, l64_attention_back, q, k);
    const int D = m->shape.D, NH = m->shape.NH;
    y->in[2] = v;
    y->T = T;
    y->starts = starts;
    for (int r = 0; r < y->rows; r++)
        for (int h = 0; h < NH; h++) {
            double p[L64_MAX_T];
            int first, n = l64_attend(p, &first, y, r, h), hk = h / (NH / m->shape.NKV);
            for (int j = 0; j < n; j++)
                for (int d = 0; d < D; d++)
                    y->v[r * q->cols + h * D + d] +=
                        p[j] * v->v[(first + j) * v->cols + hk * D + d];
        }
    return y;
}

/* y = silu(gate) up */
static inline void l64_swiglu_back(struct l64 *y)
{
    struct l64 *gate = y->in[0], *up = y->in[1];
    for (int i = 0; i < y->rows * y->cols; i++) {
        const double x = gate->v[i], s = 1 / (1 + exp(-x));
        gate->g[i] += y->g[i] * up->v[i] * s * (1 + x * (1 - s));
        up->g[i] += y->g[i] * x * s;
    }
}

static inline struct l64 *l64_swiglu(struct l64_model *m, struct l64 *gate, struct l64 *up)
{
    struct l64 *y = l64_node(m, gate->rows, gate->cols, l64_swiglu_back, gate, up);
    for (int i = 0; i < y->rows * y->cols; i++)
        y->v[i] = gate->v[i] / (1 + exp(-gate->v[i])) * up->v[i];
    return y;
}

/* Mean of -log softmax(logits)[target] over the targets that count; the logits' gradient is set. */
static inline double l64_loss(struct l64 *logits, const int32_t *targets)
{
    double loss = 0;
    int ntokens = 0;
    for (int r = 0; r < logits->rows; r++)
        ntokens += targets[r] != L64_IGNORE;
    for (int r = 0; r < logits->rows; r++) {
        const double *z = logits->v + r * logits->cols;
        double sum = 0;
        if (targets[r] == L64_IGNORE)
            continue;
        for (int c = 0; c < logits->cols; c++)
            sum += exp(z[c]);
        for (int c = 0; c < logits->cols; c++)
            logits->g[r * logits->cols + c] = (exp(z[c]) / sum - (c == targets[r])) / ntokens;
        loss += (log(sum) - z[targets[r]]) / ntokens;
    }
    return loss;
}

/* ---- the model ------------------------------------------------------------------------------- */

/* Adds a parameter. cols 0: a vector. */
static inline struct l64_param *l64_put(struct l64_model *m, const char *name, int rows, int cols,
                                        const float *values)
{
    struct l64_param *p = &m->param[m->nparams++];
    const int width = cols ? cols : 1;
    if (m->nparams > L64_MAX_PARAMS)
        abort();
    *p = (struct l64_param){.w = {.rows = rows, .cols = cols}};
    snprintf(p->name, sizeof p->name, "%s", name);
    double **all[] = {&p->w.v, &p->w.g, &p->m1, &p->m2, &p->first};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        *all[i] = l64_zeros(rows, width);
    for (int i = 0; i < rows * width; i++)
        p->w.v[i] = p->first[i] = (double)values[i];
    return p;
}

/* The weight of that name: where it was not put there, read from the file. */
static inline struct l64 *l64_weight(struct l64_model *m, const struct ref_tensors *file,
                                     const char *name, int rows, int cols)
{
    struct l64_param *p = l64_find(m, name);
    if (p)
        return &p->w;
    const float *values =
        file ? ref_tensor(file, name, (uint64_t)rows * (uint64_t)(cols ? cols : 1)) : NULL;
    if (!values)
        exit(1);
    return &l64_put(m, name, rows, cols, values)->w;
}

static inline struct l64 *l64_layer(struct l64_model *m, const struct ref_tensors *file, int layer,
                                    struct l64 *x, int T, const int32_t *starts)
{
    const struct l64_shape *s = &m->shape;
    const int C = s->C, F = s->F, NHD = s->NH * s->D, KVD = s->NKV * s->D;
    char name[80];
#define L64_W(what, rows, cols)                                                                    \
    (snprintf(name, sizeof name, "model.layers.%d." what ".weight", layer),                        \
     l64_weight(m, file, name, rows, cols))
    struct l64 *h = l64_rmsnorm(m, x, L64_W("input_layernorm", C, 0));
    struct l64 *q = l64_rope(m, l64_linear(m, h, L64_W("self_attn.q_proj", NHD, C)), T, starts);
    struct l64 *k = l64_rope(m, l64_linear(m, h, L64_W("self_attn.k_proj", KVD, C)), T, starts);
    struct l64 *v = l64_linear(m, h, L64_W("self_attn.v_proj", KVD, C));
    struct l64 *o = l64_attention(m, q, k, v, T, starts);
    x = l64_add(m, x, l64_linear(m, o, L64_W("self_attn.o_proj", C, NHD)));

    h = l64_rmsnorm(m, x, L64_W("post_attention_layernorm", C, 0));
    struct l64 *gate = l64_linear(m, h, L64_W("mlp.gate_proj", F, C));
    struct l64 *up = l64_linear(m, h, L64_W("mlp.up_proj", F, C));
    struct l64 *act = l64_swiglu(m, gate, up);
    return l64_add(m, x, l64_linear(m, act, L64_W("mlp.down_proj", C, F)));
#undef L64_W
}

static inline int l64_nelem(const struct l64_param *p)
{
    return p->w.rows * (p->w.cols ? p->w.cols : 1);
}

/* The norm of all gradients. */
static inline double l64_norm(const struct l64_model *m)
{
    double sum = 0, most = 0;
    for (int k = 0; k < m->nparams; k++)
        for (int i = 0; i < l64_nelem(&m->param[k]) && !m->param[k].frozen; i++) {
            sum += m->param[k].w.g[i] * m->param[k].w.g[i];
            most = fmax(most, fabs(m->param[k].w.g[i]));
        }
    return m->optim.clip_inf ? most : sqrt(sum);
}

/* AdamW (Loshchilov and Hutter, arXiv 1711.05101). */
static inline void l64_adamw(const struct l64_model *m, struct l64_param *p, double lr,
                             double decay, double clip)
{
    const double beta1 = p->own ? p->beta1 : m->optim.beta1;
    const double beta2 = p->own ? p->beta2 : m->optim.beta2;
    const double fix1 = 1 - pow(beta1, m->step), fix2 = 1 - pow(beta2, m->step);
    for (int i = 0; i < l64_nelem(p); i++) {
        const double g = p->w.g[i] * clip;
        p->m1[i] = beta1 * p->m1[i] + (1 - beta1) * g;
        p->m2[i] = beta2 * p->m2[i] + (1 - beta2) * g * g;
        p->w.v[i] -= lr * decay * p->w.v[i];
        p->w.v[i] -= lr * (p->m1[i] / fix1) / (sqrt(p->m2[i] / fix2) + m->optim.eps);
    }
}

/* Sutskever et al. (ICML 2013) as PyTorch has it: the first gradient begins the momentum whole. */
static inline void l64_sgd(const struct l64_model *m, struct l64_param *p, double lr, double decay,
                           double clip)
{
    const struct l64_optim *o = &m->optim;
    for (int i = 0; i < l64_nelem(p); i++) {
        const double g = p->w.g[i] * clip + decay * p->w.v[i];
        p->m1[i] = m->step == 1 ? g : o->momentum * p->m1[i] + (1 - o->dampening) * g;
        const double way = o->momentum == 0 ? g
                           : o->nesterov    ? g + o->momentum * p->m1[i]
                                            : p->m1[i];
        p->w.v[i] -= lr * way;
    }
}

/* Clips and updates. Returns the norm before. */
static inline double l64_update(struct l64_model *m, double lr)
{
    const struct l64_optim *o = &m->optim;
    const double norm = l64_norm(m), clip = o->clip > 0 ? fmin(1, o->clip / (norm + 1e-6)) : 1;
    m->step++;
    for (int k = 0; k < m->nparams; k++) {
        struct l64_param *p = &m->param[k];
        const double own = p->own ? p->weight_decay : o->weight_decay;
        const double decay = p->own || p->w.cols || o->decay_all ? own : 0;
        const double rate = p->own ? lr * p->lr_scale : lr;
        if (!p->frozen)
            (o->sgd ? l64_sgd : l64_adamw)(m, p, rate, decay, clip);
        memset(p->w.g, 0, (size_t)l64_nelem(p) * sizeof *p->w.g);
    }
    return norm;
}

/* One step on rows of T positions, nrows in all: what stands there, what it predicts (or
 * L64_IGNORE), and where in its row the document of each begins (NULL: one document). */
static inline void l64_step(struct l64_model *m, const struct ref_tensors *file,
                            const int32_t *inputs, const int32_t *targets, const int32_t *starts,
                            int nrows, int T, double lr, double *loss, double *norm)
{
    const struct l64_shape *s = &m->shape;
    struct l64 *w = l64_weight(m, file, "model.embed_tokens.weight", s->V, s->C);
    struct l64 *x = l64_embed(m, w, inputs, nrows * T);
    for (int layer = 0; layer < s->layers; layer++)
        x = l64_layer(m, file, layer, x, T, starts);
    x = l64_rmsnorm(m, x, l64_weight(m, file, "model.norm.weight", s->C, 0));
    x = l64_linear(m, x, s->tied ? w : l64_weight(m, file, "lm_head.weight", s->V, s->C));
    *loss = l64_loss(x, targets);
    while (m->nnodes) {
        struct l64 *y = &m->tape[--m->nnodes];
        y->back(y);
        free(y->v);
        free(y->g);
    }
    *norm = l64_update(m, lr);
}

/* The same on plain rows of T + 1 tokens. */
static inline void l64_step_rows(struct l64_model *m, const struct ref_tensors *file,
                                 const int32_t *tokens, int nrows, int T, double lr, double *loss,
                                 double *norm)
{
    int32_t *inputs = malloc((size_t)(nrows * T) * sizeof *inputs);
    int32_t *targets = malloc((size_t)(nrows * T) * sizeof *targets);
    for (int r = 0; r < nrows * T; r++) {
        inputs[r] = tokens[r / T * (T + 1) + r % T];
        targets[r] = tokens[r / T * (T + 1) + r % T + 1];
    }
    l64_step(m, file, inputs, targets, NULL, nrows, T, lr, loss, norm);
    free(inputs);
    free(targets);
}

#endif
