/* SPDX-License-Identifier: Apache-2.0 */
/* What a program's main does with its command line. */
#include <stdio.h>

#include "fsdp/sys/cli.h"

int fsdp_cli_answer(FILE *to, const struct fsdp_cli_program *program,
                    const struct fsdp_cli_line *line, struct fsdp_err *err)
{
    if (line->request == FSDP_CLI_HELP)
        fsdp_cli_print_help(to, program);
    else if (line->request == FSDP_CLI_COMPLETION)
        fsdp_cli_print_completion(to, program, line->shell);
    else
        fsdp_version_print(to, program->name);
    return fflush(to) || ferror(to) ? fsdp_err_set(err, FSDP_EIO, "cannot write the output")
                                    : FSDP_OK;
}

int fsdp_cli_begin(struct fsdp_cli_line *out, const struct fsdp_cli_program *program,
                   void *settings, int argc, char **argv, FILE *errors)
{
    struct fsdp_err err = FSDP_ERR_INIT;

    if (fsdp_cli_parse(out, program, settings, argc, argv, &err))
        return fsdp_cli_refuse(errors, program, err.text);
    if (out->request == FSDP_CLI_RUN)
        return -1;
    if (fsdp_cli_answer(stdout, program, out, &err) == FSDP_OK)
        return 0;
    fprintf(errors, "%s: %s\n", program->name, err.text);
    return 1;
}

int fsdp_cli_refuse(FILE *errors, const struct fsdp_cli_program *program, const char *what)
{
    char text[FSDP_ERR_TEXT_NBYTES];

    snprintf(text, sizeof text, "%s", what);
    fprintf(errors, "%s: %s\nTry '%s --help'.\n", program->name, fsdp_text_clean(text),
            program->name);
    return 2;
}
