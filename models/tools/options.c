/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "options.h"

const char *const option_devices[] = {"auto", "cpu", "cuda", NULL};

enum { MAX_ROWS = 32, FIRST = 256 };

int options_refuse(const struct option_table *table, const char *what)
{
    fprintf(stderr, "%s: %s\nTry '%s --help'.\n", table->program, what, table->program);
    return 2;
}

static int bad_value(const struct option_table *table, const struct option_row *row,
                     const char *text, const char *allowed)
{
    fprintf(stderr, "%s: --%s: '%s' is not %s\n", table->program, row->name, text, allowed);
    return 2;
}

/* ---- values ---------------------------------------------------------------------------------- */

static bool parse_int(int *out, const struct option_row *row, const char *text)
{
    char *end;

    errno = 0;
    const long value = strtol(text, &end, 10);
    if (end == text || *end || errno || value < (long)row->least || value > (long)row->most)
        return false;
    *out = (int)value;
    return true;
}

static bool parse_seed(uint64_t *out, const char *text)
{
    char *end;

    errno = 0;
    *out = strtoull(text, &end, 0);
    return end != text && !*end && !errno && *text != '-';
}

static bool parse_number(double *out, const struct option_row *row, const char *text)
{
    char *end;

    *out = strtod(text, &end);
    if (end == text || *end)
        return false;
    if (row->kind == OPTION_SHARE)
        return *out < 1 && (*out > 0 || (row->least < 0 && *out == 0));
    return *out >= row->least && *out <= row->most;
}

static int word_at(const struct option_row *row, const char *text)
{
    for (int i = 0; row->words[i]; i++)
        if (!strcmp(row->words[i], text))
            return i;
    return -1;
}

static int refuse_word(const struct option_table *table, const struct option_row *row,
                       const char *text)
{
    char allowed[200] = "";

    for (int i = 0; row->words[i]; i++) {
        const size_t len = strlen(allowed);
        snprintf(allowed + len, sizeof allowed - len, "%s%s",
                 !i                  ? ""
                 : row->words[i + 1] ? ", "
                                     : " or ",
                 row->words[i]);
    }
    return bad_value(table, row, text, allowed);
}

static int set_own(const struct option_table *table, const struct option_row *row, void *to,
                   const char *text)
{
    struct fsdp_err err = FSDP_ERR_INIT;

    if (row->parse(to, text, &err) == FSDP_OK)
        return 0;
    fprintf(stderr, "%s: --%s: %s\n", table->program, row->name, err.text);
    return 2;
}

/* 0, or the exit code. */
static int set_value(const struct option_table *table, const struct option_row *row, void *to,
                     const char *text)
{
    char allowed[64];

    switch (row->kind) {
    case OPTION_FLAG:
        *(bool *)to = true;
        return 0;
    case OPTION_TEXT:
        *(const char **)to = text;
        return 0;
    case OPTION_INT:
        snprintf(allowed, sizeof allowed, "an integer of %.0f to %.0f", row->least, row->most);
        return parse_int(to, row, text) ? 0 : bad_value(table, row, text, allowed);
    case OPTION_SEED:
        return parse_seed(to, text) ? 0 : bad_value(table, row, text, "an integer of 0 or more");
    case OPTION_NUMBER:
        return parse_number(to, row, text) ? 0 : bad_value(table, row, text, "a number");
    case OPTION_SHARE:
        return parse_number(to, row, text)
                   ? 0
                   : bad_value(table, row, text, "a number between 0 and 1");
    case OPTION_OWN:
        return set_own(table, row, to, text);
    case OPTION_WORD:
    case OPTION_NAME:
        break;
    }
    const int index = word_at(row, text);
    if (index < 0)
        return refuse_word(table, row, text);
    if (row->kind == OPTION_WORD)
        *(int *)to = index;
    else
        *(const char **)to = row->words[index];
    return 0;
}

/* ---- the command line ------------------------------------------------------------------------ */

static const struct {
    char letter;
    const char *name;
} letters[] = {{'v', "verbose"}, {'o', "output"}};
enum { NLETTERS = sizeof letters / sizeof letters[0] };

/* The option that a letter is short for; -1: the program has none. */
static int short_for(const struct option_table *table, int letter)
{
    for (int k = 0; k < (int)NLETTERS; k++)
        for (int i = 0; letters[k].letter == letter && i < table->nrows; i++)
            if (!strcmp(table->rows[i].name, letters[k].name))
                return FIRST + i;
    return -1;
}

/* For getopt: h, and the letters of this table. */
static void short_options(char out[2 * NLETTERS + 2], const struct option_table *table)
{
    *out++ = 'h';
    for (int k = 0; k < (int)NLETTERS; k++) {
        const int option = short_for(table, letters[k].letter);
        if (option < 0)
            continue;
        *out++ = letters[k].letter;
        if (table->rows[option - FIRST].kind != OPTION_FLAG)
            *out++ = ':';
    }
    *out = 0;
}

int options_parse(const struct option_table *table, void *settings, int argc, char **argv)
{
    struct option known[MAX_ROWS + 3] = {{"help", no_argument, NULL, 'h'},
                                         {"version", no_argument, NULL, 'V'}};
    char brief[2 * NLETTERS + 2];
    int option, rc;

    for (int i = 0; i < table->nrows; i++)
        known[i + 2] = (struct option){
            table->rows[i].name,
            table->rows[i].kind == OPTION_FLAG ? no_argument : required_argument, NULL, FIRST + i};
    short_options(brief, table);
    while ((option = getopt_long(argc, argv, brief, known, NULL)) != -1) {
        if (option == 'h') {
            fputs(table->usage, stdout);
            return 0;
        }
        if (option == 'V') {
            fsdp_version_print(stdout, table->program);
            return 0;
        }
        if (option < FIRST)
            option = short_for(table, option);
        if (option < FIRST) { /* getopt has said what is wrong */
            fprintf(stderr, "Try '%s --help'.\n", table->program);
            return 2;
        }
        const struct option_row *row = &table->rows[option - FIRST];
        if ((rc = set_value(table, row, (char *)settings + row->offset, optarg)))
            return rc;
    }
    return optind < argc && !table->operands
               ? options_refuse(table, "takes no arguments besides options")
               : -1;
}
