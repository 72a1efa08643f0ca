/* SPDX-License-Identifier: Apache-2.0 */
/* A command line parsed by its table. */
#include <errno.h>
#include <float.h>
#include <getopt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

enum { MAX_ROWS = 96, FIRST = 256 };

/* "--name" or "-n", for messages. */
static const char *shown(char out[64], const struct fsdp_cli_option *row)
{
    if (row->name)
        snprintf(out, 64, "--%s", row->name);
    else
        snprintf(out, 64, "-%c", row->letter);
    return out;
}

/* ---- values ---------------------------------------------------------------------------------- */

static int expected(const struct fsdp_cli_option *row, const char *text, const char *what,
                    struct fsdp_err *err)
{
    char name[64];
    return fsdp_err_set(err, FSDP_EINVAL, "%s %s: expected %s", shown(name, row),
                        *text ? text : "''", what);
}

static int set_int(int *out, const struct fsdp_cli_option *row, const char *text,
                   struct fsdp_err *err)
{
    char *end, what[96];

    errno = 0;
    const long value = strtol(text, &end, 10);
    if (*text == ' ' || end == text || *end || errno || value < (long)row->least ||
        value > (long)row->most) {
        snprintf(what, sizeof what, "a whole number from %.0f to %.0f", row->least, row->most);
        return expected(row, text, what, err);
    }
    *out = (int)value;
    return FSDP_OK;
}

static int set_seed(uint64_t *out, const struct fsdp_cli_option *row, const char *text,
                    struct fsdp_err *err)
{
    char *end;

    errno = 0;
    *out = strtoull(text, &end, 0);
    return *text >= '0' && *text <= '9' && !*end && !errno
               ? FSDP_OK
               : expected(row, text, "a whole number, 0 or more", err);
}

static void range_text(char *out, size_t out_nbytes, const struct fsdp_cli_option *row)
{
    static const char *const texts[][2] = {[FSDP_CLI_NUMBER] = {"from ", " to "},
                                           [FSDP_CLI_ABOVE] = {"above ", ", at most "},
                                           [FSDP_CLI_BELOW] = {"from ", " to less than "},
                                           [FSDP_CLI_WITHIN] = {"between ", " and "}};
    if (row->most < DBL_MAX)
        snprintf(out, out_nbytes, "a number %s%g%s%g", texts[row->kind][0], row->least,
                 texts[row->kind][1], row->most);
    else if (row->least > -HUGE_VAL)
        snprintf(out, out_nbytes, "a number of at least %g", row->least);
    else
        snprintf(out, out_nbytes, "a number");
}

static int set_number(double *out, const struct fsdp_cli_option *row, const char *text,
                      struct fsdp_err *err)
{
    const bool above = row->kind == FSDP_CLI_ABOVE || row->kind == FSDP_CLI_WITHIN;
    const bool below = row->kind == FSDP_CLI_BELOW || row->kind == FSDP_CLI_WITHIN;
    char *end, what[96];

    const double x = strtod(text, &end);
    if (end != text && !*end && (above ? x > row->least : x >= row->least) &&
        (below ? x < row->most : x <= row->most)) {
        *out = x;
        return FSDP_OK;
    }
    range_text(what, sizeof what, row);
    return expected(row, text, what, err);
}

static int word_at(const char *const *words, const char *text)
{
    for (int i = 0; words[i]; i++)
        if (!strcmp(words[i], text))
            return i;
    return -1;
}

static int find_word(int *out, const struct fsdp_cli_option *row, const char *text,
                     struct fsdp_err *err)
{
    char what[240] = "";

    if ((*out = word_at(row->words, text)) >= 0)
        return FSDP_OK;
    for (int i = 0; row->words[i]; i++) {
        const size_t len = strlen(what);
        snprintf(what + len, sizeof what - len, "%s%s",
                 !i                  ? ""
                 : row->words[i + 1] ? ", "
                                     : " or ",
                 row->words[i]);
    }
    return expected(row, text, what, err);
}

static int set_word(void *to, const struct fsdp_cli_option *row, const char *text,
                    struct fsdp_err *err)
{
    int index;

    FSDP_TRY(find_word(&index, row, text, err));
    if (row->kind == FSDP_CLI_WORD)
        *(int *)to = index;
    else
        *(const char **)to = row->words[index];
    return FSDP_OK;
}

static int set_own(void *to, const struct fsdp_cli_option *row, const char *text,
                   struct fsdp_err *err)
{
    char name[64];
    const int rc = row->parse(to, text, err);

    return rc ? fsdp_err_prefix(err, rc, "%s: ", shown(name, row)) : FSDP_OK;
}

static int set_value(void *to, const struct fsdp_cli_option *row, const char *text,
                     struct fsdp_err *err)
{
    switch (row->kind) {
    case FSDP_CLI_FLAG:
        *(bool *)to = true;
        return FSDP_OK;
    case FSDP_CLI_TEXT:
        *(const char **)to = text;
        return FSDP_OK;
    case FSDP_CLI_FILE:
        if (!*text)
            return expected(row, text, "the name of a file or folder", err);
        *(const char **)to = text;
        return FSDP_OK;
    case FSDP_CLI_INT:
        return set_int(to, row, text, err);
    case FSDP_CLI_SEED:
        return set_seed(to, row, text, err);
    case FSDP_CLI_NUMBER:
    case FSDP_CLI_ABOVE:
    case FSDP_CLI_BELOW:
    case FSDP_CLI_WITHIN:
        return set_number(to, row, text, err);
    case FSDP_CLI_WORD:
    case FSDP_CLI_NAME:
        return set_word(to, row, text, err);
    case FSDP_CLI_OWN:
        break;
    }
    return set_own(to, row, text, err);
}

/* ---- options --------------------------------------------------------------------------------- */

/* getopt's form of the table. */
struct known {
    struct option names[MAX_ROWS + 1];
    char letters[3 * MAX_ROWS + 3];
    const struct fsdp_cli_option *rows[MAX_ROWS];
    int nrows;
};

static void know(struct known *known, const struct fsdp_cli_program *program)
{
    const struct fsdp_cli_option *row;
    char *letter = known->letters;
    int nnames = 0;

    *letter++ = '+'; /* operands are taken in turn */
    *letter++ = ':'; /* a value that is missing has a message of its own */
    for (int i = 0; i < MAX_ROWS && (row = cli_option_at(program, i)); i++) {
        known->rows[known->nrows++] = row;
        if (row->name)
            known->names[nnames++] = (struct option){row->name,
                                                     !row->arg           ? no_argument
                                                     : cli_may_omit(row) ? optional_argument
                                                                         : required_argument,
                                                     NULL, FIRST + i};
        if (row->letter) {
            *letter++ = row->letter;
            if (row->arg)
                *letter++ = ':';
        }
    }
    *letter = 0;
}

static const struct fsdp_cli_option *row_of(const struct known *known, int option)
{
    if (option >= FIRST)
        return known->rows[option - FIRST];
    for (int i = 0; i < known->nrows; i++)
        if (known->rows[i]->letter == option)
            return known->rows[i];
    return NULL;
}

/* The option that was probably meant: one that begins so, or is a few typing errors away. */
static const char *nearest_option(const struct known *known, const char *arg)
{
    char name[64];
    const char *best = NULL;
    snprintf(name, sizeof name, "%.*s", (int)strcspn(arg + 2, "="), arg + 2);
    int least = (int)strlen(name) / 4 + 2;

    for (const struct option *o = known->names; o->name && *name; o++) {
        int d = strncmp(o->name, name, strlen(name)) ? fsdp_text_distance(name, o->name) : 0;
        if (d < least) {
            best = o->name;
            least = d;
        }
    }
    return best;
}

static int refuse_unknown(const struct known *known, const char *arg, struct fsdp_err *err)
{
    const char *near = arg[1] == '-' ? nearest_option(known, arg) : NULL;
    const char *eq = strchr(arg, '=');

    if (near && eq && strlen(near) == (size_t)(eq - arg - 2) &&
        !strncmp(arg + 2, near, strlen(near)))
        return fsdp_err_set(err, FSDP_EINVAL, "--%s takes no value; give --%s alone", near, near);
    return near ? fsdp_err_set(err, FSDP_EINVAL, "unknown option %s; did you mean --%s?", arg, near)
                : fsdp_err_set(err, FSDP_EINVAL, "unknown option %s", arg);
}

static int refuse_missing(const struct known *known, int option, struct fsdp_err *err)
{
    const struct fsdp_cli_option *row = row_of(known, option);
    char name[64];

    return fsdp_err_set(err, FSDP_EINVAL, "%s needs a value: %s %s", shown(name, row), name,
                        row->arg);
}

/* getopt_long also takes the beginning of a long option's name. */
static bool is_abbreviated(const struct known *known, const char *arg, int index)
{
    size_t len = index < 0 ? 0 : strlen(known->names[index].name);
    return index >= 0 && (strncmp(arg + 2, known->names[index].name, len) != 0 ||
                          (arg[2 + len] && arg[2 + len] != '='));
}

/* The last row is --completion, those before it --help and --version (cli.c). */
static int take_option(struct fsdp_cli_line *out, const struct known *known, void *settings,
                       int option, const char *text, struct fsdp_err *err)
{
    const struct fsdp_cli_option *row = row_of(known, option);
    const int from_end = known->rows[known->nrows - 1] == row   ? 1
                         : known->rows[known->nrows - 2] == row ? 2
                         : known->rows[known->nrows - 3] == row ? 3
                                                                : 0;

    if (!from_end)
        return set_value((char *)settings + row->offset, row, text, err);
    out->request = from_end == 3   ? FSDP_CLI_HELP
                   : from_end == 2 ? FSDP_CLI_VERSION
                                   : FSDP_CLI_COMPLETION;
    return from_end == 1 ? find_word(&out->shell, row, text, err) : FSDP_OK;
}

/* Moves the operands to argv[1 ...]. */
static int take_all(struct fsdp_cli_line *out, const struct known *known, void *settings,
                    const struct fsdp_cli_program *program, int argc, char **argv,
                    struct fsdp_err *err)
{
    opterr = 0;
    optind = 0; /* from the beginning, whoever has used it before */
    for (;;) {
        const int at = optind ? optind : 1;
        const char *arg = at < argc ? argv[at] : NULL;
        int index = -1, rc = FSDP_OK;
        int option = getopt_long(argc, argv, known->letters, known->names, &index);
        if (option == -1 && !arg)
            return FSDP_OK;
        if (option == -1 && !strcmp(arg, "--")) {
            if (program->starts_program)
                out->program = argv + optind;
            else
                while (optind < argc)
                    argv[1 + out->noperands++] = argv[optind++];
            return FSDP_OK;
        }
        if (option == -1)
            argv[1 + out->noperands++] = argv[optind++]; /* never ahead of the next */
        else if (option == '?' || is_abbreviated(known, arg, index))
            rc = refuse_unknown(known, arg, err);
        else
            rc = option == ':' ? refuse_missing(known, optopt, err)
                               : take_option(out, known, settings, option, optarg, err);
        if (rc)
            return rc;
    }
}

int fsdp_cli_parse(struct fsdp_cli_line *out, const struct fsdp_cli_program *program,
                   void *settings, int argc, char **argv, struct fsdp_err *err)
{
    struct known known = {.nrows = 0};

    *out = (struct fsdp_cli_line){.operands = argv + 1};
    know(&known, program);
    FSDP_TRY(take_all(out, &known, settings, program, argc, argv, err));
    if (out->request != FSDP_CLI_RUN ||
        (out->noperands >= program->least && out->noperands <= program->most))
        return FSDP_OK;
    if (!program->most)
        return fsdp_err_set(err, FSDP_EINVAL, "'%s': only options are taken here%s%s",
                            out->operands[0], program->operands ? "; type " : "",
                            program->operands ? program->operands : "");
    return fsdp_err_set(err, FSDP_EINVAL, "give %s", program->operands);
}
