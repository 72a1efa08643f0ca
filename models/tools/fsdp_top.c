/* SPDX-License-Identifier: Apache-2.0 */
/* fsdp-top: how the runs below a folder are doing, live in a terminal, as a table or as JSON. */
#include <errno.h>
#include <langinfo.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fsdp/sys/cli.h"
#include "top/terminal.h"
#include "top/view.h"

struct settings {
    bool once, json;
    int sort;
    double interval;
};

#define AT(field) offsetof(struct settings, field)
static const struct fsdp_cli_option rows[] = {
    {"once", .offset = AT(once), .help = "print the table once, and exit"},
    {"json", .offset = AT(json), .help = "print a JSON array once, and exit"},
    {"interval", .arg = "S", .kind = FSDP_CLI_NUMBER, .offset = AT(interval), .least = 0.2,
     .most = 3600, .help = "seconds between two updates (default: 2)"},
    {"sort", .arg = "ORDER", .kind = FSDP_CLI_WORD, .offset = AT(sort), .words = top_sort_words,
     .help = "state (problems first), name, seen (latest sign of life first) or left (next to "
             "end first) (default: state)"},
    {.help = NULL}};
static const struct fsdp_cli_group groups[] = {{"Options", rows}, {NULL, NULL}};
static const struct fsdp_cli_note environment[] = {
    {"NO_COLOR", "any value: no colours"},
    {"COLUMNS", "width of the table if standard output is not a terminal (default: 80)"},
    {NULL, NULL}};
static const struct fsdp_cli_note exits[] = {{"0", "success, whatever the states of the runs"},
                                             {"1", "a folder cannot be read"},
                                             {"2", "wrong usage"},
                                             {NULL, NULL}};
static const struct fsdp_cli_program program = {
    .name = "fsdp-top",
    .usage = "[options] [FOLDER...]",
    .purpose =
        "Shows the runs below the folders (default: this one): state, step, loss, rate, time left, "
        "age of the last save and of the last sign of life, ranks, and which rank hangs.\n"
        "\nIt reads status.json, which fsdp-launch keeps in checkpoint.path, or next to "
        "log.metrics if that is a store or not set. In a folder without one, it shows the newest "
        "file of metrics.",
    .groups = groups,
    .notes = "Keys: q quit, arrows or j and k select, Enter shows all of one run, Esc goes back, s "
             "sorts, r looks for new runs at once.",
    .examples = "fsdp-top runs\n"
                "fsdp-top --once --sort left runs /scratch/me/checkpoints\n"
                "fsdp-top --json runs | jq '.[] | select(.state == \"lost\") | .name'",
    .environment = environment,
    .exits = exits,
    .most = 1 << 20,
    .operands = "folders",
};

static int fail(const struct fsdp_err *err)
{
    fprintf(stderr, "fsdp-top: %s\n", err->text);
    return 1;
}

static int print_once(const struct settings *set, int nfolders, char *const *folders,
                      const struct top_style *style)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct top_jobs jobs;
    char cut[400], unread[FSDP_ERR_TEXT_NBYTES + 64];

    if (top_find(&jobs, nfolders, folders, style->now, &err))
        return fail(&err);
    top_sort(&jobs, (enum top_sort)set->sort);
    int rc = FSDP_OK;
    if (set->json)
        rc = top_show_json(stdout, &jobs, &err);
    else
        top_show_table(stdout, style, &jobs, 0, -1, 0);
    if (rc == FSDP_OK && fflush(stdout) != 0)
        rc = fsdp_err_sys(&err, errno, "standard output");
    if (rc == FSDP_OK && !jobs.njobs && !set->json)
        fprintf(stderr, "fsdp-top: no runs below %s%s\n", folders[0], nfolders > 1 ? ", ..." : "");
    top_cut_text(cut, sizeof cut, &jobs);
    if (rc == FSDP_OK && cut[0])
        fprintf(stderr, "fsdp-top: %s\n", cut);
    top_unread_text(unread, sizeof unread, &jobs);
    if (rc == FSDP_OK && unread[0])
        fprintf(stderr, "fsdp-top: %s\n", unread);
    top_jobs_free(&jobs);
    return rc ? fail(&err) : 0;
}

static int watch(const struct settings *set, int nfolders, char *const *folders,
                 const struct top_style *style)
{
    const struct top_view_opts opts = {.nfolders = nfolders,
                                       .folders = folders,
                                       .interval_s = set->interval,
                                       .sort = (enum top_sort)set->sort,
                                       .color = style->color,
                                       .utf8 = style->utf8};
    struct fsdp_err err = FSDP_ERR_INIT;
    int ended_by = 0;

    if (top_view(&opts, &ended_by, &err))
        return fail(&err);
    if (ended_by)
        raise(ended_by); /* whoever waits sees what ended it */
    return 0;
}

int main(int argc, char **argv)
{
    static char here[] = ".";
    char *default_folders[] = {here};
    struct settings set = {.interval = 2, .sort = TOP_BY_STATE};
    struct fsdp_cli_line line;
    int lines;

    fsdp_std_fill();
    setlocale(LC_CTYPE, "");
    const int rc = fsdp_cli_begin(&line, &program, &set, argc, argv, stderr);
    if (rc >= 0)
        return rc;
    const char *term = getenv("TERM");
    const bool is_terminal = isatty(STDOUT_FILENO);
    const bool is_dumb = !term || !*term || !strcmp(term, "dumb");
    struct top_style style = {.color = is_terminal && !is_dumb && !getenv("NO_COLOR"),
                              .utf8 = !strcmp(nl_langinfo(CODESET), "UTF-8"),
                              .now = top_now()};
    const int nfolders = line.noperands ? line.noperands : 1;
    char *const *folders = line.noperands ? line.operands : default_folders;
    for (int i = 0; i < nfolders; i++)
        for (size_t n = strlen(folders[i]); n > 1 && folders[i][n - 1] == '/'; n--)
            folders[i][n - 1] = 0;
    terminal_size(&style.columns, &lines);
    if (set.once || set.json || !is_terminal || is_dumb)
        return print_once(&set, nfolders, folders, &style);
    return watch(&set, nfolders, folders, &style);
}
