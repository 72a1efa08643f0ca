/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "impl.h"

void run_clear(struct run *run, bool with_origin)
{
    run->text.nbytes = 0;
    run->with_origin = with_origin;
}

void run_free(struct run *run)
{
    unicode_text_free(&run->text);
    fsdp_free(run->origin);
    *run = (struct run){0};
}

static int reserve_run(struct run *run, size_t more, struct fsdp_err *err)
{
    const size_t want = run->text.nbytes + more, room = want + want / 2 + 64;

    if (want > INT32_MAX)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED, "a text of more than 2 GiB");
    if (want > run->text.room) {
        char *at = fsdp_alloc_reserve(run->text.at, run->text.nbytes, &run->text.room, room, 1,
                                      "text", err);
        if (!at)
            return FSDP_ENOMEM;
        run->text.at = at;
    }
    if (run->with_origin && want > run->max_origin) {
        uint32_t *origin = fsdp_alloc_reserve(run->origin, run->text.nbytes, &run->max_origin, room,
                                              sizeof *origin, "text", err);
        if (!origin)
            return FSDP_ENOMEM;
        run->origin = origin;
    }
    return FSDP_OK;
}

int run_add(struct run *run, const char *text, size_t nbytes, size_t from, const uint32_t *origins,
            struct fsdp_err *err)
{
    FSDP_TRY(reserve_run(run, nbytes, err));
    if (nbytes)
        memcpy(run->text.at + run->text.nbytes, text, nbytes);
    for (size_t i = 0; run->with_origin && i < nbytes; i++)
        run->origin[run->text.nbytes + i] = origins ? origins[i] : (uint32_t)(from + i);
    run->text.nbytes += nbytes;
    return FSDP_OK;
}

int run_insert(struct run *run, const char *text, size_t nbytes, size_t from, size_t last,
               struct fsdp_err *err)
{
    FSDP_TRY(reserve_run(run, nbytes, err));
    if (nbytes)
        memcpy(run->text.at + run->text.nbytes, text, nbytes);
    for (size_t i = 0; run->with_origin && i < nbytes; i++)
        run->origin[run->text.nbytes + i] = (uint32_t)(i + 1 == nbytes ? last : from);
    run->text.nbytes += nbytes;
    return FSDP_OK;
}

int pieces_add(struct pieces *pieces, size_t first, size_t nbytes, bool at_start,
               struct fsdp_err *err)
{
    struct piece *at =
        fsdp_alloc_grow(pieces->at, pieces->npieces, &pieces->max, sizeof *at, "pieces", err);

    if (!at)
        return FSDP_ENOMEM;
    pieces->at = at;
    at[pieces->npieces++] = (struct piece){(uint32_t)first, (uint32_t)nbytes, at_start};
    return FSDP_OK;
}

/* ---- matchers -------------------------------------------------------------------------------- */

int matcher_literal(struct matcher *out, const char *text, size_t nbytes, struct fsdp_err *err)
{
    if (!nbytes)
        return fsdp_err_set(err, FSDP_EINVAL, "an empty pattern");
    out->literal = fsdp_alloc(nbytes + 1, 1, "pattern", err);
    if (!out->literal)
        return FSDP_ENOMEM;
    memcpy(out->literal, text, nbytes);
    out->nliteral = nbytes;
    return FSDP_OK;
}

int matcher_regex(struct matcher *out, struct tokenizer *t, const char *pattern, size_t nbytes,
                  enum regex_engine engine, struct fsdp_err *err)
{
    if (t->nregexes == MAX_REGEXES)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED, "more than %d regular expressions",
                            MAX_REGEXES);
    FSDP_TRY(regex_create(&t->regexes[t->nregexes], pattern, nbytes, engine, err));
    *out = (struct matcher){.regex = t->nregexes++};
    return FSDP_OK;
}

int matcher_next(const struct matcher *matcher, struct regex_scan *const *scans, const char *text,
                 size_t nbytes, size_t *first, size_t *end, struct fsdp_err *err)
{
    const size_t from = *first;

    if (!matcher->literal)
        return regex_next(scans[matcher->regex], text, nbytes, from, first, end, err);
    if (from == nbytes)
        return 0;
    const char *at = memmem(text + from, nbytes - from, matcher->literal, matcher->nliteral);
    if (!at)
        return 0;
    *first = (size_t)(at - text);
    *end = *first + matcher->nliteral;
    return 1;
}
