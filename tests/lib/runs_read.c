/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "runs.h"

enum { MAX_COLUMNS = 80 };

enum kind { TEXT, NUMBER, INTEGER, FLAG };
#define FIELD(name, member, kind, otherwise)                                                       \
    {                                                                                              \
        name, offsetof(struct runs_row, member), sizeof(((struct runs_row *)0)->member), kind,     \
            otherwise                                                                              \
    }
static const struct field {
    const char *name;
    size_t offset, nbytes;
    enum kind kind;
    const char *otherwise; /* where it is empty or missing */
} fields[] = {
    FIELD("id", id, TEXT, ""),
    FIELD("source", source, TEXT, "?"),
    FIELD("framework", framework, TEXT, ""),
    FIELD("gpu", gpu, TEXT, "h100"),
    FIELD("stack", stack, TEXT, "eager"),
    FIELD("attn", attn, TEXT, "fa2"),
    FIELD("strategy", strategy, TEXT, "zero3"),
    FIELD("recompute", recompute, TEXT, "none"),
    FIELD("precision", precision, TEXT, "bf16"),
    FIELD("mlp", mlp, TEXT, "gelu"),
    FIELD("model", model, TEXT, ""),
    FIELD("d_model", dim, NUMBER, "0"),
    FIELD("layers", layers, NUMBER, "0"),
    FIELD("heads", heads, NUMBER, "0"),
    FIELD("kv_heads", kv_heads, NUMBER, "0"),
    FIELD("ffn", ffn, NUMBER, "0"),
    FIELD("vocab", vocab, NUMBER, "50257"),
    FIELD("gpus", gpus, INTEGER, "0"),
    FIELD("node_size", node_size, INTEGER, "8"),
    FIELD("net_gbytes_s_node", net_gbs, NUMBER, "0"),
    FIELD("shard", shard, INTEGER, "0"),
    FIELD("replicas", replicas, INTEGER, "0"),
    FIELD("tp", tp, INTEGER, "1"),
    FIELD("cp", cp, INTEGER, "1"),
    FIELD("pp", pp, INTEGER, "1"),
    FIELD("vpp", vpp, INTEGER, "1"),
    FIELD("accum", accum, INTEGER, "1"),
    FIELD("micro_batch", micro_batch, NUMBER, "1"),
    FIELD("seq", seq, NUMBER, "0"),
    FIELD("recompute_frac", recompute_frac, NUMBER, "-1"),
    FIELD("gather_bytes", gather_nbytes, NUMBER, "2"),
    FIELD("reduce_bytes", reduce_nbytes, NUMBER, "4"),
    FIELD("tok_s_gpu", measured, NUMBER, "0"),
    FIELD("tied", tied, FLAG, "0"),
    FIELD("usable", usable, FLAG, "1"),
};
enum { NFIELDS = sizeof fields / sizeof fields[0] };

/* Splits a line in place: cells may be in quotes, in which two stand for one. */
static int split(char **cell, char *line, char separator)
{
    char *to = line;
    int n = 0;

    for (;;) {
        bool quoted = *line == '"' && separator == ',';
        char *begin = to;
        line += quoted;
        while (*line && (quoted || *line != separator)) {
            if (quoted && *line == '"') {
                line++;
                if (*line != '"') {
                    quoted = false;
                    continue;
                }
            }
            *to++ = *line++;
        }
        const bool more = *line == separator;
        line += more;
        *to++ = 0;
        if (n < MAX_COLUMNS)
            cell[n++] = begin;
        if (!more)
            return n;
    }
}

static void set(struct runs_row *row, const struct field *f, const char *text)
{
    void *at = (char *)row + f->offset;
    char *end;
    double number;

    if (f->kind == TEXT) {
        snprintf(at, f->nbytes, "%s", *text ? text : f->otherwise);
        return;
    }
    number = strtod(text, &end);
    if (end == text)
        number = strtod(f->otherwise, NULL);
    if (f->kind == NUMBER)
        *(double *)at = number;
    else if (f->kind == INTEGER)
        *(int *)at = (int)number;
    else
        *(bool *)at = number != 0;
}

/* What follows from other columns. */
static void complete(struct runs_row *r)
{
    const double again = !strcmp(r->recompute, "none")                ? 0
                         : !strncmp(r->recompute, "selective-op", 12) ? .5
                         : !strncmp(r->recompute, "selective", 9)     ? 0
                                                                      : 1;

    r->heads = r->heads > 0 ? r->heads : r->dim / 128;
    r->kv_heads = r->kv_heads > 0 ? r->kv_heads : r->heads;
    r->ffn = r->ffn > 0 ? r->ffn : 4 * r->dim;
    r->node_size = r->node_size > 0 ? r->node_size : 8;
    r->tp = r->tp > 0 ? r->tp : 1;
    r->cp = r->cp > 0 ? r->cp : 1;
    r->pp = r->pp > 0 ? r->pp : 1;
    r->vpp = r->vpp > 0 ? r->vpp : 1;
    r->accum = r->accum > 0 ? r->accum : 1;
    const int data = r->gpus > 0 ? r->gpus / (r->tp * r->cp * r->pp) : 0;
    if (r->shard < 1)
        r->shard = data / (r->replicas > 0 ? r->replicas : 1);
    if (r->replicas < 1)
        r->replicas = r->shard > 0 && data > r->shard ? data / r->shard : 1;
    if (r->recompute_frac < 0)
        r->recompute_frac = again;
}

static int read_rows(struct runs_row *rows, FILE *from, const char *file, struct fsdp_err *err)
{
    char *line = NULL, *cell[MAX_COLUMNS];
    int column[NFIELDS], nrows = 0;
    size_t room = 0;
    char separator = ',';

    for (int at = 0; getline(&line, &room, from) > 0; at++) {
        line[strcspn(line, "\r\n")] = 0;
        if (!*line || *line == '#')
            continue;
        if (!at)
            separator = strchr(line, '\t') ? '\t' : ',';
        const int n = split(cell, line, separator);
        for (int i = 0; !at && i < NFIELDS; i++) {
            column[i] = -1;
            for (int k = 0; k < n; k++)
                if (!strcmp(cell[k], fields[i].name))
                    column[i] = k;
        }
        if (!at && column[0] < 0) {
            free(line);
            return fsdp_err_set(err, FSDP_EINVAL, "%s: its first line has no column 'id'", file);
        }
        if (!at || nrows == RUNS_MAX)
            continue;
        for (int i = 0; i < NFIELDS; i++)
            set(&rows[nrows], &fields[i], column[i] >= 0 && column[i] < n ? cell[column[i]] : "");
        complete(&rows[nrows++]);
    }
    free(line);
    return nrows;
}

int runs_read(struct runs_row **rows, int *nrows, const char *file, struct fsdp_err *err)
{
    FILE *from = fopen(file, "r");

    if (!from)
        return fsdp_err_set(err, FSDP_EIO, "%s: cannot be read", file);
    *rows = fsdp_alloc(RUNS_MAX, sizeof **rows, "published runs", err);
    const int n = *rows ? read_rows(*rows, from, file, err) : FSDP_ENOMEM;
    fclose(from);
    *nrows = n > 0 ? n : 0;
    return n < 0 ? n : FSDP_OK;
}

const char *runs_lacks(const struct runs_row *r)
{
    const double ranks = (double)r->tp * r->cp * r->pp * r->shard * r->replicas;

    if (!(r->dim > 0) || !(r->layers > 0) || !(r->heads > 0) || !(r->vocab > 0))
        return "dimensions of the model";
    if (!(r->seq > 0) || !(r->micro_batch > 0))
        return "the size of a micro-batch";
    if (r->gpus < 1 || r->shard < 1 || ranks < 1)
        return "the number of GPUs";
    return NULL;
}

bool runs_is_foreign(const struct runs_row *r)
{
    return r->tp > 1 || r->cp > 1 || r->pp > 1;
}
