/* SPDX-License-Identifier: Apache-2.0 */
/* --completion: a script for a shell, made from the table. */
#include <stdio.h>
#include <string.h>

#include "cli.h"

/* ---- words of the table ---------------------------------------------------------------------- */

/* The program's name as a function's: a letter, digits and '_'. */
static const char *function_name(char out[64], const struct fsdp_cli_program *program)
{
    snprintf(out, 64, "%s", program->name);
    for (char *at = out; (at = strchr(at, '-'));)
        *at = '_';
    return out;
}

static void put_words(FILE *to, const char *const *words)
{
    for (int i = 0; words[i]; i++)
        fprintf(to, "%s%s", i ? " " : "", words[i]);
}

/* "section.key=" of each setting. */
static void put_key_names(FILE *to, const struct fsdp_cli_program *program)
{
    for (int i = 0; i < program->nkeys; i++)
        fprintf(to, "%s%s=", i ? " " : "", program->keys[i].name);
}

/* What a key takes, where that is words: of a choice, or yes and no. */
static bool key_has_words(const struct fsdp_tunable *key)
{
    return key->type == FSDP_TUNABLE_BOOL || key->type == FSDP_TUNABLE_CHOICE;
}

/* Each with `before` in front of it. */
static void put_key_words(FILE *to, const struct fsdp_tunable *key, const char *before)
{
    const char *at = key->type == FSDP_TUNABLE_BOOL ? "true|false" : key->allowed;

    for (const char *gap = ""; *at; gap = " ") {
        const int len = (int)strcspn(at, "|");
        fprintf(to, "%s%s%.*s", gap, before, len, at);
        at += len + (at[len] != 0);
    }
}

/* The end of a help text's first thought, or the last word that a line has room for. */
static size_t brief_length(const char *help)
{
    enum { ROOM = 64 };
    size_t len = 0, word = 0;

    for (; help[len] && len < ROOM; len++) {
        if (help[len] == ' ' || help[len + 1] == 0)
            word = len;
        if (strchr(".;:", help[len]) && (help[len + 1] == ' ' || !help[len + 1]))
            return len;
        if (help[len] == ' ' && help[len + 1] == '(')
            return len;
    }
    return help[len] ? word : len;
}

/* Without what a shell would read in quotes. */
static void put_brief(FILE *to, const char *help)
{
    const size_t len = brief_length(help);

    for (size_t i = 0; i < len; i++)
        if (!strchr("'\"\\[]`$", help[i]))
            fputc(help[i] == ':' ? ',' : help[i], to);
}

/* ---- bash ------------------------------------------------------------------------------------ */

/* "--output | -o" */
static void put_pattern(FILE *to, const struct fsdp_cli_option *row)
{
    if (row->name)
        fprintf(to, "--%s", row->name);
    if (row->letter)
        fprintf(to, "%s-%c", row->name ? " | " : "", row->letter);
}

static void put_bash_values(FILE *to, const struct fsdp_cli_program *program)
{
    const struct fsdp_cli_option *row;

    for (int i = 0; (row = cli_option_at(program, i)); i++) {
        if (!row->arg || cli_may_omit(row))
            continue;
        fputs("    ", to);
        put_pattern(to, row);
        fputs(") words='", to);
        if (row->words)
            put_words(to, row->words);
        fprintf(to, "' kind=%s ;;\n", cli_takes_file(row) ? "file" : "none");
    }
    for (int i = 0; i < program->nkeys; i++)
        if (key_has_words(&program->keys[i])) {
            fprintf(to, "    %s) words='", program->keys[i].name);
            put_key_words(to, &program->keys[i], "");
            fputs("' ;;\n", to);
        }
}

static void put_bash_options(FILE *to, const struct fsdp_cli_program *program)
{
    const struct fsdp_cli_option *row;

    for (int i = 0; (row = cli_option_at(program, i)); i++) {
        fputs(i ? " " : "", to);
        if (row->name)
            fprintf(to, "--%s", row->name);
        else
            fprintf(to, "-%c", row->letter);
    }
}

static void print_bash(FILE *to, const struct fsdp_cli_program *program)
{
    char function[64];

    function_name(function, program);
    fprintf(
        to,
        "# Completion of %s for bash.\n"
        "_%s() {\n"
        "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} words= kind=\n"
        "    COMPREPLY=()\n"
        "    if [ \"$cur\" = '=' ]; then\n"
        "        cur=\n"
        "    elif [ \"$prev\" = '=' ]; then\n"
        "        prev=${COMP_WORDS[COMP_CWORD - 2]}\n"
        "    fi\n"
        "    case $prev in\n",
        program->name, function);
    put_bash_values(to, program);
    fputs("    *)\n"
          "        case $cur in\n"
          "        -*) words='",
          to);
    put_bash_options(to, program);
    fputs("' ;;\n"
          "        *) kind=word ;;\n"
          "        esac\n"
          "        ;;\n"
          "    esac\n",
          to);
    if (program->nkeys) {
        fputs("    if [ \"$kind\" = word ] && [[ $cur == *.* || -z $cur ]]; then\n"
              "        words='",
              to);
        put_key_names(to, program);
        fputs("'\n"
              "        compopt -o nospace 2>/dev/null\n"
              "    fi\n",
              to);
    }
    fprintf(to,
            "    [ -z \"$words\" ] || mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$cur\")\n"
            "    case $kind in\n"
            "    file | word)\n"
            "        local files\n"
            "        mapfile -t files < <(compgen -f -- \"$cur\")\n"
            "        COMPREPLY+=(\"${files[@]}\")\n"
            "        compopt -o filenames 2>/dev/null\n"
            "        ;;\n"
            "    esac\n"
            "}\n"
            "complete -F _%s %s\n",
            function, program->name);
}

/* ---- zsh ------------------------------------------------------------------------------------- */

static void put_zsh_values(FILE *to, const struct fsdp_cli_option *row)
{
    if (!row->words) {
        fputs(cli_takes_file(row) ? "_files" : " ", to);
        return;
    }
    fputs(cli_takes_file(row) ? "{_alternative \"words:word:(" : "(", to);
    put_words(to, row->words);
    fputs(cli_takes_file(row) ? ")\" \"files:file:_files\"}" : ")", to);
}

static void put_zsh_option(FILE *to, const struct fsdp_cli_option *row)
{
    const char *name = row->name ? row->name : "";
    const char *arg = row->arg ? row->arg : "";
    const int len = (int)strcspn(arg + strspn(arg, "[="), "]");

    if (row->name && row->letter)
        fprintf(to, "'(-%c --%s)'{-%c%s,--%s%s}'[", row->letter, name, row->letter,
                row->arg ? "+" : "", name, row->arg ? "=" : "");
    else if (row->letter)
        fprintf(to, "'-%c%s[", row->letter, row->arg ? "+" : "");
    else
        fprintf(to, "'--%s%s[", name, !row->arg ? "" : cli_may_omit(row) ? "=-" : "=");
    put_brief(to, row->help);
    fputc(']', to);
    if (row->arg) {
        fputs(cli_may_omit(row) ? "::" : ":", to);
        for (int i = 0; i < len; i++) {
            const char c = arg[strspn(arg, "[=") + (size_t)i];
            fputc(c == ':' ? '-' : c, to);
        }
        fputc(':', to);
        put_zsh_values(to, row);
    }
    fputs("'", to);
}

static void put_zsh_keys(FILE *to, const struct fsdp_cli_program *program, const char *function)
{
    fprintf(to,
            "_%s_words() {\n"
            "    if compset -P '*='; then\n"
            "        case ${IPREFIX%%=} in\n",
            function);
    for (int i = 0; i < program->nkeys; i++)
        if (key_has_words(&program->keys[i])) {
            fprintf(to, "        %s) compadd -- ", program->keys[i].name);
            put_key_words(to, &program->keys[i], "");
            fputs(" ;;\n", to);
        }
    fputs("        *) _files ;;\n"
          "        esac\n"
          "    else\n"
          "        compadd -S '' -- ",
          to);
    put_key_names(to, program);
    fputs("\n"
          "        _files\n"
          "    fi\n"
          "}\n",
          to);
}

static void print_zsh(FILE *to, const struct fsdp_cli_program *program)
{
    const struct fsdp_cli_option *row;
    char function[64];

    function_name(function, program);
    fprintf(to, "#compdef %s\n# Completion of %s for zsh.\n", program->name, program->name);
    if (program->nkeys)
        put_zsh_keys(to, program, function);
    fprintf(to, "_%s() {\n    _arguments -s", function);
    for (int i = 0; (row = cli_option_at(program, i)); i++) {
        fputs(" \\\n        ", to);
        put_zsh_option(to, row);
    }
    if (program->most)
        fprintf(to, " \\\n        '*: :%s%s%s'", program->nkeys ? "_" : "_files",
                program->nkeys ? function : "", program->nkeys ? "_words" : "");
    fprintf(to,
            "\n}\n"
            "if [ \"${funcstack[1]}\" = _%s ] || [ \"${funcstack[1]}\" = _%s ]; then\n"
            "    _%s \"$@\"\n"
            "else\n"
            "    compdef _%s %s\n"
            "fi\n",
            function, program->name, function, function, program->name);
}

/* ---- fish ------------------------------------------------------------------------------------ */

static void put_fish_option(FILE *to, const struct fsdp_cli_program *program,
                            const struct fsdp_cli_option *row)
{
    fprintf(to, "complete -c %s", program->name);
    if (row->letter)
        fprintf(to, " -s %c", row->letter);
    if (row->name)
        fprintf(to, " -l %s", row->name);
    if (row->words) {
        fprintf(to, " %s -a '", cli_takes_file(row) ? "-r -F" : "-x");
        put_words(to, row->words);
        fputc('\'', to);
    } else if (row->arg && !cli_may_omit(row)) {
        fputs(cli_takes_file(row) ? " -r -F" : " -x", to);
    }
    fputs(" -d '", to);
    put_brief(to, row->help);
    fputs("'\n", to);
}

static void print_fish(FILE *to, const struct fsdp_cli_program *program)
{
    const struct fsdp_cli_option *row;
    char before[128];

    fprintf(to, "# Completion of %s for fish.\ncomplete -c %s -e\n", program->name, program->name);
    if (!program->most)
        fprintf(to, "complete -c %s -f\n", program->name);
    for (int i = 0; (row = cli_option_at(program, i)); i++)
        put_fish_option(to, program, row);
    for (int i = 0; i < program->nkeys; i++) {
        const struct fsdp_tunable *key = &program->keys[i];
        fprintf(to, "complete -c %s -n 'not string match -q -- \"*=*\" (commandline -ct)' -a '%s='",
                program->name, key->name);
        fputs(" -d '", to);
        put_brief(to, key->help);
        fputs("'\n", to);
        if (!key_has_words(key))
            continue;
        fprintf(to, "complete -c %s -f -n 'string match -q -- \"%s=*\" (commandline -ct)' -a '",
                program->name, key->name);
        snprintf(before, sizeof before, "%s=", key->name);
        put_key_words(to, key, before);
        fputs("'\n", to);
    }
}

void fsdp_cli_print_completion(FILE *to, const struct fsdp_cli_program *program, int shell)
{
    static void (*const print[])(FILE *, const struct fsdp_cli_program *) = {print_bash, print_zsh,
                                                                             print_fish};
    print[shell](to, program);
}
