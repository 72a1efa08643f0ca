/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tables of models/from: each key of theirs once, each key of ours one that the configuration
 * has. With --table NAME it prints the rows that docs/migrate.md has.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../models/config/config_impl.h"
#include "../../models/from/from.h"
#include "../../models/from/job.h"
#include "tap.h"

/* A row that stands behind one that matches all that it matches is never reached. */
static bool is_shadowed(const struct from_source *source, int at)
{
    for (int i = 0; i < at; i++) {
        const char *theirs = source->rows[i].theirs;
        size_t len = strlen(theirs);
        bool any = theirs[len - 1] == '*';
        if (any ? !strncmp(theirs, source->rows[at].theirs, len - 1)
                : !strcmp(theirs, source->rows[at].theirs)) {
            printf("# %s: '%s' is behind '%s'\n", source->name, source->rows[at].theirs, theirs);
            return true;
        }
    }
    return false;
}

static bool has_key(const char *key)
{
    for (int i = 0; i < config_nrows; i++)
        if (!strcmp(config_table[i].name, key))
            return true;
    printf("# no key %s\n", key);
    return false;
}

static void check_source(const struct from_source *source)
{
    bool reached = true, known = true, noted = true;
    for (int i = 0; i < source->nrows; i++) {
        const struct from_row *row = &source->rows[i];
        reached &= !is_shadowed(source, i);
        if (row->fate == FROM_SET && strchr(row->ours, '.'))
            known &= has_key(row->ours);
        noted &= row->fate == FROM_SET || row->note;
    }
    ok(reached, "%s: every row can be reached", source->name);
    ok(known, "%s: every key of ours is one", source->name);
    ok(noted, "%s: what is not set is explained", source->name);
}

/* ---- texts of other people ------------------------------------------------------------------- */

static bool is_printable(const char *text)
{
    const char *end = text + strlen(text);
    uint32_t code;

    for (int n; text < end; text += n)
        if (!(n = fsdp_utf8_decode(&code, text, end)) || (code < ' ' && code != '\n') ||
            (code >= 0x7f && code < 0xa0) || code == 0x2028)
            return false;
    return true;
}

static int count_lines(const char *text, const char *begin)
{
    int n = 0;

    for (const char *at = text; at; at = strchr(at, '\n') ? strchr(at, '\n') + 1 : NULL)
        n += !strncmp(at, begin, strlen(begin));
    return n;
}

/* Whatever a file says, it adds no line of its own to the run.yaml, which can be read again. */
static void check_hostile(void)
{
    static const char head[] = "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\n";
    static const char *const parts[] = {
        "odd: \"a\\nmodel: x\"\n",
        "odd: \"a\\u2028model: x\"\n",
        "odd: \"a\\x7f\\x9b31m\"\n",
        "\"o\\ndd\": 1\n",
        "num_machines: 2\nmain_process_ip: \"h\\nmodel: x\"\n",
        "num_machines: 2\nmain_process_ip: \"h; rm -rf /\"\nmain_process_port: \"1$(x)\"\n",
        "fsdp_config:\n  fsdp_transformer_layer_cls_to_wrap: \"A,B]\\nmodel: x\"\n",
    };
    char path[] = "/tmp/test_from_XXXXXX";
    const int fd = mkstemp(path);
    struct fsdp_err err = FSDP_ERR_INIT;
    char *yaml = NULL, *summary = NULL;

    for (size_t i = 0; fd >= 0 && i <= sizeof parts / sizeof parts[0]; i++) {
        FILE *to = fopen(path, "w");
        fputs(head, to);
        if (i < sizeof parts / sizeof parts[0])
            fputs(parts[i], to);
        else { /* which are cut somewhere in a character */
            fputs("odd: \"", to);
            for (int k = 0; k < 700; k++)
                fputs(k ? "\xc3\xa9" : "x", to);
            fputs("\"\n", to);
        }
        fclose(to);
        ok(from_convert(&yaml, &summary, path, &err) == FSDP_OK && is_printable(yaml) &&
               is_printable(summary) && count_lines(yaml, "model:") == 1 &&
               count_lines(summary, "model:") == 0 && !strstr(summary, "rm -rf") &&
               !strstr(summary, "$("),
           "hostile text %zu %s", i, err.text);
        fsdp_free(yaml);
        fsdp_free(summary);
        yaml = summary = NULL;
    }
    FILE *to = fopen(path, "w");
    fputs(head, to);
    for (int i = 0; i < 1 << 20; i++)
        fputs("# long\n", to);
    fclose(to);
    ok(from_convert(&yaml, &summary, path, &err) == FSDP_EINVAL && strstr(err.text, "4 MiB"), "%s",
       err.text);
    remove(path);
    close(fd);
}

static int print_table(const char *name)
{
    char *text = NULL;
    if (from_table(&text, name, NULL))
        return 1;
    fputs(text, stdout);
    fsdp_free(text);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 3 && !strcmp(argv[1], "--table"))
        return print_table(argv[2]);
    check_source(&from_accelerate);
    check_source(&from_deepspeed);
    check_hostile();
    return tap_done();
}
