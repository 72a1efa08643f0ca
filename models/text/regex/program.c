/* SPDX-License-Identifier: Apache-2.0 */
/* Pieces of a parsed pattern. */
#include <stdio.h>
#include <string.h>

#include "program.h"

void regex_program_free(struct regex_program *program)
{
    for (size_t i = 0; i < program->nsets; i++)
        regex_set_free(&program->sets[i]);
    fsdp_free(program->sets);
    fsdp_free(program->pieces);
    *program = (struct regex_program){0};
}

int regex_program_insert(struct regex_program *program, size_t at, const char *text,
                         struct fsdp_err *err)
{
    struct regex_piece *const pieces =
        fsdp_alloc_grow(program->pieces, program->npieces, &program->max_pieces, sizeof *pieces,
                        "regular expression", err);

    if (!pieces)
        return FSDP_ENOMEM;
    program->pieces = pieces;
    memmove(pieces + at + 1, pieces + at, (program->npieces - at) * sizeof *pieces);
    memset(&pieces[at], 0, sizeof pieces[at]);
    snprintf(pieces[at].text, sizeof pieces[at].text, "%s", text);
    program->npieces++;
    return FSDP_OK;
}

int regex_program_text(struct regex_program *program, const char *text, struct fsdp_err *err)
{
    return regex_program_insert(program, program->npieces, text, err);
}

int regex_program_set(struct regex_program *program, struct regex_set *set, struct fsdp_err *err)
{
    struct regex_set *const sets = fsdp_alloc_grow(
        program->sets, program->nsets, &program->max_sets, sizeof *sets, "regular expression", err);

    if (!sets) {
        regex_set_free(set);
        return FSDP_ENOMEM;
    }
    program->sets = sets;
    sets[program->nsets++] = *set;
    *set = (struct regex_set){0};
    FSDP_TRY(regex_program_text(program, "", err));
    program->pieces[program->npieces - 1].set = program->nsets - 1;
    return FSDP_OK;
}
