/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tables of models/from: each key of theirs once, each key of ours one that the configuration
 * has. With --table NAME it prints the rows that docs/migrate.md has.
 */
#include <stdio.h>
#include <string.h>

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
    return tap_done();
}
