/* SPDX-License-Identifier: Apache-2.0 */
/* --help: one layout for all programs, 80 columns wide. */
#include <stdio.h>
#include <string.h>

#include "cli.h"

enum { WIDTH = 79, OPTION_COLUMN = 27, NOTE_COLUMN = 19 };

/* Prints a text, whose lines are paragraphs, from column `at` on, in lines that begin at `indent`.
 */
static void put_wrapped(FILE *to, const char *text, int at, int indent)
{
    while (*text) {
        const int len = (int)strcspn(text, " \n");
        if (at > indent && at + 1 + len > WIDTH) {
            fprintf(to, "\n%*s", indent, "");
            at = indent;
        } else if (at > indent) {
            fputc(' ', to);
            at++;
        }
        fprintf(to, "%.*s", len, text);
        at += len;
        text += len;
        if (*text == '\n' && text[1]) {
            fprintf(to, "\n%*s", indent, "");
            at = indent;
        }
        text += *text != 0;
    }
    fputc('\n', to);
}

/* A name at `column` 2, then its text from `column` on, on the next line where it would touch. */
static void put_row(FILE *to, const char *name, const char *text, int column)
{
    int at = fprintf(to, "  %s", name);
    if (at > column - 2) {
        fputc('\n', to);
        at = 0;
    }
    fprintf(to, "%*s", column - at, "");
    put_wrapped(to, text, column, column);
}

static void put_option(FILE *to, const struct fsdp_cli_option *row)
{
    char name[80], letter[8] = "    ";
    const char *arg = row->arg ? row->arg : "";

    if (row->letter)
        snprintf(letter, sizeof letter, row->name ? "-%c, " : "-%c", row->letter);
    snprintf(name, sizeof name, "%s%s%s%s%s", letter, row->name ? "--" : "",
             row->name ? row->name : "", row->arg && !cli_may_omit(row) ? " " : "", arg);
    put_row(to, name, row->help, OPTION_COLUMN);
}

/* "first NAME line", then the others below it. */
static void put_lines(FILE *to, const char *lines, const char *first, const char *next,
                      const char *name)
{
    for (const char *at = lines; *at;) {
        const int len = (int)strcspn(at, "\n");
        fprintf(to, "%s%s%.*s\n", at == lines ? first : next, name, len, at);
        at += len + (at[len] != 0);
    }
}

static void put_notes(FILE *to, const char *title, const struct fsdp_cli_note *notes)
{
    if (!notes)
        return;
    fprintf(to, "\n%s:\n", title);
    for (; notes->name; notes++)
        put_row(to, notes->name, notes->text, NOTE_COLUMN);
}

void fsdp_cli_print_help(FILE *to, const struct fsdp_cli_program *program)
{
    const struct fsdp_cli_group *group;
    char name[64];

    snprintf(name, sizeof name, "%s ", program->name);
    put_lines(to, program->usage, "Usage: ", "       ", name);
    fputc('\n', to);
    put_wrapped(to, program->purpose, 0, 0);
    for (int g = 0; (group = cli_group_at(program, g)); g++) {
        fprintf(to, "\n%s:\n", group->title);
        for (const struct fsdp_cli_option *row = group->rows; row->help; row++)
            put_option(to, row);
    }
    if (program->notes) {
        fputc('\n', to);
        put_wrapped(to, program->notes, 0, 0);
    }
    fputs("\nExamples:\n", to);
    put_lines(to, program->examples, "  ", "  ", "");
    put_notes(to, "Environment", program->environment);
    put_notes(to, "Exit status", program->exits);
}
