/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cluster.h"

/* ---- words of a line ---- */

/* One word, up to a blank or the line's end, made printable. Longer words are cut. */
static void copy_word(char *out, size_t nbytes, const char *from, size_t len)
{
    snprintf(out, nbytes, "%.*s", (int)(len < nbytes ? len : nbytes - 1), from);
    fsdp_text_clean(out);
}

/* The value of " Key=" in the line that begins at `line`: NULL where it is not there. */
static const char *value_of(const char *line, size_t line_len, const char *key, size_t *len)
{
    const size_t key_len = strlen(key);

    for (size_t at = 0; at + key_len <= line_len; at++) {
        if ((at && line[at - 1] != ' ') || strncmp(line + at, key, key_len) != 0)
            continue;
        *len = strcspn(line + at + key_len, " \n");
        return line + at + key_len;
    }
    return NULL;
}

static void word_of(char *out, size_t nbytes, const char *line, size_t line_len, const char *key)
{
    size_t len = 0;
    const char *value = value_of(line, line_len, key, &len);

    out[0] = '\0';
    if (value)
        copy_word(out, nbytes, value, len);
}

/* A whole number from 0 to most; -1 for anything else. */
static int64_t whole_number(const char *text, int64_t most)
{
    char *end;

    if (text[0] < '0' || text[0] > '9')
        return -1;
    errno = 0;
    const long long value = strtoll(text, &end, 10);
    return errno || value > most ? -1 : *end ? -1 : (int64_t)value;
}

static int64_t limit_of(const char *word)
{
    const int64_t value = whole_number(word, SLURM_MOST_COUNT);
    return value < 0 ? SLURM_UNLIMITED : value;
}

/* ---- partitions ---- */

static void parse_partition(struct slurm_partition *out, const char *line, size_t len)
{
    char word[SLURM_NAME_NBYTES];

    *out = (struct slurm_partition){0};
    word_of(out->name, sizeof out->name, line, len, "PartitionName=");
    word_of(out->state, sizeof out->state, line, len, "State=");
    word_of(out->accounts, sizeof out->accounts, line, len, "AllowAccounts=");
    if (!out->accounts[0])
        strcpy(out->accounts, "ALL");
    word_of(word, sizeof word, line, len, "Default=");
    out->is_default = strcmp(word, "YES") == 0;
    word_of(word, sizeof word, line, len, "MaxNodes=");
    out->max_nodes = limit_of(word);
    word_of(word, sizeof word, line, len, "MinNodes=");
    out->min_nodes =
        whole_number(word, SLURM_MOST_COUNT) > 0 ? whole_number(word, SLURM_MOST_COUNT) : 0;
    word_of(word, sizeof word, line, len, "MaxTime=");
    out->max_seconds = slurm_seconds_parse(word);
    if (out->max_seconds <= 0)
        out->max_seconds = SLURM_UNLIMITED;
}

int slurm_partitions_parse(struct slurm_cluster *out, const char *text, struct fsdp_err *err)
{
    out->partitions = fsdp_alloc(SLURM_MOST_PARTITIONS, sizeof *out->partitions, "partitions", err);
    if (!out->partitions)
        return FSDP_ENOMEM;
    for (const char *line = text; *line && out->npartitions < SLURM_MOST_PARTITIONS;) {
        const size_t len = strcspn(line, "\n");
        struct slurm_partition *p = &out->partitions[out->npartitions];
        parse_partition(p, line, len);
        out->npartitions += p->name[0] != '\0';
        line += len + (line[len] == '\n');
    }
    if (!out->npartitions)
        return fsdp_err_set(err, FSDP_ENOTFOUND, "scontrol show partition lists no partition");
    return FSDP_OK;
}

/* ---- nodes ---- */

/* "gpu:a100:4(S:0-1),gpu:2,nic:1": how many GPUs, and the type of the first that has one. */
static int parse_gpus(char type[SLURM_NAME_NBYTES], const char *gres)
{
    int64_t total = 0;

    type[0] = '\0';
    for (const char *at = gres; *at;) {
        char word[128];
        /* A comma inside "(S:0,2)" ends no word. */
        size_t len = 0;
        for (int depth = 0; at[len] && (depth || at[len] != ','); len++)
            depth += at[len] == '(' ? 1 : at[len] == ')' && depth ? -1 : 0;
        copy_word(word, sizeof word, at, len);
        word[strcspn(word, "(")] = '\0';
        at += len + (at[len] == ',');
        char *name = strchr(word, ':'), *count = strrchr(word, ':');
        if (!name || strncmp(word, "gpu:", 4) != 0)
            continue;
        const int64_t value = whole_number(count + 1, SLURM_MOST_COUNT);
        total += value > 0 ? value : 0;
        if (!type[0] && count > name)
            copy_word(type, SLURM_NAME_NBYTES, name + 1, (size_t)(count - name - 1));
    }
    return total > SLURM_MOST_COUNT ? 0 : (int)total;
}

/* sinfo's short names; a sign behind one says more ("idle~": asleep, "idle*": does not answer). */
static bool is_usable(const char *state)
{
    static const char *const good[] = {"idle", "mix",  "alloc", "comp",   "resv",
                                       "plnd", "boot", "maint", "pow_up", "pow_dn"};
    const size_t len = strcspn(state, "*~#!%$@^+-");

    if (strchr(state, '*'))
        return false;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        if (len == strlen(good[i]) && strncmp(state, good[i], len) == 0)
            return true;
    return false;
}

enum { FIELDS = 7 };

static bool parse_node(struct slurm_shape *out, char *line)
{
    char *field[FIELDS];
    int nfields = 0;

    for (char *at = line; at && nfields < FIELDS; nfields++) {
        field[nfields] = at;
        at = strchr(at, '|');
        if (at)
            *at++ = '\0';
    }
    if (nfields < FIELDS)
        return false;
    *out = (struct slurm_shape){.nnodes = 1, .nusable = is_usable(field[4])};
    copy_word(out->partition, sizeof out->partition, field[0], strlen(field[0]));
    out->ncpus = (int)whole_number(field[1], SLURM_MOST_COUNT);
    /* "+" behind a number stands for nodes that differ; -N has no such line, but who knows. */
    field[2][strcspn(field[2], "+")] = '\0';
    out->memory_mib = whole_number(field[2], INT64_MAX >> 24);
    out->ngpus = parse_gpus(out->gpu, field[3]);
    out->nsockets = (int)whole_number(field[5], SLURM_MOST_COUNT);
    out->nthreads = (int)whole_number(field[6], SLURM_MOST_COUNT);
    out->nsockets = out->nsockets < 1 ? 1 : out->nsockets;
    out->nthreads = out->nthreads < 1 ? 1 : out->nthreads;
    out->memory_mib = out->memory_mib < 0 ? 0 : out->memory_mib;
    return out->partition[0] && out->ncpus > 0;
}

static bool is_alike(const struct slurm_shape *a, const struct slurm_shape *b)
{
    return !strcmp(a->partition, b->partition) && !strcmp(a->gpu, b->gpu) && a->ncpus == b->ncpus &&
           a->nsockets == b->nsockets && a->nthreads == b->nthreads && a->ngpus == b->ngpus &&
           a->memory_mib == b->memory_mib;
}

int slurm_shapes_parse(struct slurm_cluster *out, const char *text, struct fsdp_err *err)
{
    enum { MOST = 4096 }; /* kinds of nodes */

    out->shapes = fsdp_alloc(MOST, sizeof *out->shapes, "kinds of nodes", err);
    if (!out->shapes)
        return FSDP_ENOMEM;
    for (const char *at = text; *at;) {
        char line[SLURM_LIST_NBYTES];
        const size_t len = strcspn(at, "\n");
        struct slurm_shape node;
        int i = 0;
        copy_word(line, sizeof line, at, len);
        at += len + (at[len] == '\n');
        if (!parse_node(&node, line))
            continue;
        while (i < out->nshapes && !is_alike(&out->shapes[i], &node))
            i++;
        if (i == MOST)
            return fsdp_err_set(err, FSDP_EINVAL, "sinfo lists more than %d kinds of nodes", MOST);
        if (i == out->nshapes)
            out->shapes[out->nshapes++] = node;
        else if (out->shapes[i].nnodes < SLURM_MOST_COUNT) {
            out->shapes[i].nnodes++;
            out->shapes[i].nusable += node.nusable;
        }
    }
    return FSDP_OK;
}

/* ---- the rest ---- */

static void config_word(char *out, size_t nbytes, const char *text, const char *key)
{
    const size_t key_len = strlen(key);

    for (const char *line = text; *line;) {
        const size_t len = strcspn(line, "\n");
        const size_t gap = len > key_len ? strspn(line + key_len, " ") : 0;
        if (len > key_len + gap && !strncmp(line, key, key_len) && line[key_len + gap] == '=') {
            const char *value = line + key_len + gap + 1;
            value += strspn(value, " ");
            copy_word(out, nbytes, value, strcspn(value, " \n"));
            return;
        }
        line += len + (line[len] == '\n');
    }
}

void slurm_config_parse(struct slurm_cluster *out, const char *text)
{
    char word[SLURM_NAME_NBYTES] = "";

    config_word(out->name, sizeof out->name, text, "ClusterName");
    config_word(out->version, sizeof out->version, text, "SLURM_VERSION");
    config_word(out->requeue_exit, sizeof out->requeue_exit, text, "RequeueExit");
    if (!strcmp(out->requeue_exit, "(null)"))
        out->requeue_exit[0] = '\0';
    config_word(word, sizeof word, text, "MaxTasksPerNode");
    out->most_tasks = limit_of(word);
}

bool slurm_mpi_has_pmix(const char *text)
{
    for (const char *at = text; (at = strstr(at, "pmix")); at += 4)
        if (at == text || strchr(" \t\n,", at[-1]))
            return true;
    return false;
}

bool slurm_list_has(const char *list, const char *name)
{
    const size_t len = strlen(name);

    for (const char *at = list; *at;) {
        const size_t word = strcspn(at, ",");
        if (word == len && !strncmp(at, name, len))
            return true;
        at += word + (at[word] == ',');
    }
    return false;
}

bool slurm_range_has(const char *list, int number)
{
    for (const char *at = list; *at;) {
        char word[32];
        const size_t len = strcspn(at, ",");
        copy_word(word, sizeof word, at, len);
        at += len + (at[len] == ',');
        char *to = strchr(word, '-');
        if (to)
            *to++ = '\0';
        const int64_t first = whole_number(word, 255), last = to ? whole_number(to, 255) : first;
        if (first >= 0 && number >= first && number <= last)
            return true;
    }
    return false;
}

/* Reads a number of at most nine digits and moves on; -1 where there is none. */
static int64_t digits(const char **at)
{
    int64_t value = 0;
    int n = 0;

    for (; **at >= '0' && **at <= '9'; ++*at, n++)
        value = n < 9 ? 10 * value + (**at - '0') : -1;
    return n < 1 || n > 9 ? -1 : value;
}

int64_t slurm_seconds_parse(const char *text)
{
    int64_t part[4] = {0}; /* days and three more, or none and up to three */
    int n = 0;
    bool has_days = false;

    if (!strcmp(text, "UNLIMITED") || !strcmp(text, "INFINITE"))
        return SLURM_UNLIMITED;
    for (const char *at = text;; at++) {
        if (n == 4 || (part[n++] = digits(&at)) < 0)
            return -1;
        if (!*at)
            break;
        if (*at == '-' && n == 1 && !has_days)
            has_days = true;
        else if (*at != ':')
            return -1;
    }
    if (has_days)
        return ((part[0] * 24 + part[1]) * 60 + part[2]) * 60 + part[3];
    if (n == 4)
        return -1;
    return n == 1   ? part[0] * 60
           : n == 2 ? part[0] * 60 + part[1]
                    : (part[0] * 60 + part[1]) * 60 + part[2];
}

void slurm_cluster_destroy(struct slurm_cluster *cluster)
{
    fsdp_free(cluster->partitions);
    fsdp_free(cluster->shapes);
    *cluster = (struct slurm_cluster){0};
}
