/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "journal.h"

#define FIRST_LINE "fsdp-tokenize 1\n"
enum { MAX_NBYTES = 1 << 30, NNUMBERS = 17 };

struct encode_journal {
    char *path, *output;
    int fd;
    off_t nbytes; /* of what is right */
};

/* ---- a state as a line ----------------------------------------------------------------------- */

static void numbers_of(uint64_t n[NNUMBERS], const struct encode_state *s)
{
    const struct tokens_header *h = &s->tokens.header;
    const uint64_t all[NNUMBERS] = {
        s->place.file,      s->place.offset,     s->place.line, s->place.crc, s->place.hash,
        s->joined,          s->nbytes,           s->nbad,       s->is_whole,  h->info.ntokens,
        h->info.ndocuments, h->info.has_learned, h->crc[0],     h->crc[1],    h->crc[2],
        s->tokens.bits,     h->info.source_hash};

    memcpy(n, all, sizeof all);
}

static void state_of(struct encode_state *s, const uint64_t n[NNUMBERS])
{
    struct tokens_header *h = &s->tokens.header;

    s->place = (struct encode_place){n[0], n[1], n[2], n[3], n[4]};
    s->joined = n[5];
    s->nbytes = n[6];
    s->nbad = n[7];
    s->is_whole = n[8];
    h->info.ntokens = n[9];
    h->info.ndocuments = n[10];
    h->info.has_learned = n[11];
    for (int i = 0; i < TOKENS_NPARTS; i++)
        h->crc[i] = n[12 + i];
    s->tokens.bits = (unsigned char)n[15];
    h->info.source_hash = n[16];
}

/* "at", the numbers, their checksum. */
static int put_line(char *out, size_t nbytes, const struct encode_state *s)
{
    uint64_t n[NNUMBERS];
    int len = snprintf(out, nbytes, "at");

    numbers_of(n, s);
    for (int i = 0; i < NNUMBERS; i++)
        len += snprintf(out + len, nbytes - (size_t)len, " %" PRIx64, n[i]);
    return len + snprintf(out + len, nbytes - (size_t)len, " %016" PRIx64 "\n",
                          tokens_crc(0, n, sizeof n));
}

static bool get_line(struct encode_state *s, const char *line)
{
    uint64_t n[NNUMBERS], crc;
    int len = 0;

    if (strncmp(line, "at ", 3) != 0)
        return false;
    line += 2;
    for (int i = 0; i < NNUMBERS; i++, line += len)
        if (sscanf(line, " %" SCNx64 "%n", &n[i], &len) != 1)
            return false;
    if (sscanf(line, " %16" SCNx64 "%n", &crc, &len) != 1 || line[len] != '\n' ||
        crc != tokens_crc(0, n, sizeof n))
        return false;
    state_of(s, n);
    return true;
}

/* ---- what is there --------------------------------------------------------------------------- */

/* The line of `text` behind the one at hand. */
static const char *next_line(const char *text)
{
    return strchr(text, '\n') + 1;
}

static int refuse_other(const struct encode_journal *j, const char *theirs, const char *mine,
                        struct fsdp_err *err)
{
    while (*theirs && *mine && strcspn(theirs, "\n") == strcspn(mine, "\n") &&
           !strncmp(theirs, mine, strcspn(mine, "\n"))) {
        theirs = next_line(theirs);
        mine = next_line(mine);
    }
    return fsdp_err_set(err, FSDP_EMISMATCH,
                        "'%s' is of another command, or its sources have changed: it has '%.*s', "
                        "and this one '%.*s'; give the same command, or begin anew (overwrite)",
                        j->path, (int)strcspn(theirs, "\n"), *theirs ? theirs : "no more sources",
                        (int)strcspn(mine, "\n"), *mine ? mine : "no more sources");
}

/* Behind the head in a journal's text; NULL: there is no whole one. The head ends with a 0 byte. */
static char *end_head(char *text)
{
    uint64_t crc;
    int len = 0;
    char *end = strstr(text, "\nend ");

    if (strncmp(text, FIRST_LINE, strlen(FIRST_LINE)) != 0 || !end ||
        sscanf(end, "\nend %16" SCNx64 "%n", &crc, &len) != 1 || end[len] != '\n' ||
        crc != tokens_crc(0, text, (size_t)(end + 1 - text)))
        return NULL;
    end[1] = 0;
    return end + len + 1;
}

/* *found: there is a head that is mine, and a state. */
static int read_journal(struct encode_journal *j, char *text, const char *head,
                        struct encode_state *state, bool *found, struct fsdp_err *err)
{
    char *at = end_head(text);

    if (!at)
        return FSDP_OK;
    if (strcmp(text + strlen(FIRST_LINE), head) != 0)
        return refuse_other(j, text + strlen(FIRST_LINE), head, err);
    while (strchr(at, '\n') && get_line(state, at)) {
        *found = true;
        at = strchr(at, '\n') + 1;
    }
    j->nbytes = at - text;
    return !*found || !ftruncate(j->fd, j->nbytes)
               ? FSDP_OK
               : fsdp_err_sys(err, errno, "cannot write '%s'", j->path);
}

static int read_text(const struct encode_journal *j, char **out, struct fsdp_err *err)
{
    struct stat st;

    if (fstat(j->fd, &st))
        return fsdp_err_sys(err, errno, "'%s'", j->path);
    if (st.st_size > MAX_NBYTES)
        return fsdp_err_set(err, FSDP_EINVAL, "'%s' is too large to be a journal", j->path);
    char *text = fsdp_alloc((size_t)st.st_size + 1, 1, "journal", err);
    if (!text)
        return FSDP_ENOMEM;
    for (off_t have = 0; have < st.st_size;) {
        const ssize_t n = pread(j->fd, text + have, (size_t)(st.st_size - have), have);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            fsdp_free(text);
            return fsdp_err_sys(err, n ? errno : EIO, "cannot read '%s'", j->path);
        }
        have += n;
    }
    *out = text;
    return FSDP_OK;
}

/* ---- opening --------------------------------------------------------------------------------- */

static int lock(const struct encode_journal *j, struct fsdp_err *err)
{
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    struct stat here, there;

    if (fcntl(j->fd, F_OFD_SETLK, &whole) && (errno == EAGAIN || errno == EACCES))
        return fsdp_err_set(err, FSDP_EEXIST,
                            "'%s' is being made by another process, which has '%s' open", j->output,
                            j->path);
    /* Its maker may have finished, and removed it, between opening and locking. */
    if (fstat(j->fd, &here) || stat(j->path, &there) || here.st_ino != there.st_ino)
        return fsdp_err_set(err, FSDP_EEXIST, "'%s' was made by another process just now",
                            j->output);
    return FSDP_OK;
}

/* A file of the output that is there, if nothing may be replaced. */
static int refuse_existing(const struct encode_journal *j, struct fsdp_err *err)
{
    struct stat st;

    for (int i = 0; i < 2 * TOKENS_NPARTS; i++) {
        char *name =
            fsdp_sprintf(err, "%s%s%s", j->output, tokens_ends[i / 2], i % 2 ? TOKENS_PART : "");
        if (!name)
            return FSDP_ENOMEM;
        int rc = lstat(name, &st) != 0
                     ? FSDP_OK
                     : fsdp_err_set(err, FSDP_EEXIST,
                                    "'%s' already exists (--overwrite replaces it)", name);
        fsdp_free(name);
        FSDP_TRY(rc);
    }
    return FSDP_OK;
}

static int remove_parts(const struct encode_journal *j, struct fsdp_err *err)
{
    for (int i = 0; i < TOKENS_NPARTS; i++) {
        char *name = tokens_part_path(j->output, (enum tokens_part)i, err);
        if (!name)
            return FSDP_ENOMEM;
        int rc = FSDP_OK;
        if (unlink(name) && errno != ENOENT)
            rc = fsdp_err_sys(err, errno, "cannot remove '%s'", name);
        fsdp_free(name);
        FSDP_TRY(rc);
    }
    return FSDP_OK;
}

static int write_at_end(struct encode_journal *j, const char *text, size_t nbytes,
                        struct fsdp_err *err)
{
    for (size_t have = 0; have < nbytes;) {
        const ssize_t n = pwrite(j->fd, text + have, nbytes - have, j->nbytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return fsdp_err_sys(err, errno, "cannot write '%s'", j->path);
        have += (size_t)n;
        j->nbytes += n;
    }
    return FSDP_OK;
}

static int begin_anew(struct encode_journal *j, const char *head, struct fsdp_err *err)
{
    char end[40];
    uint64_t crc = tokens_crc(0, FIRST_LINE, strlen(FIRST_LINE));

    crc = tokens_crc(crc, head, strlen(head));
    snprintf(end, sizeof end, "end %016" PRIx64 "\n", crc);
    j->nbytes = 0;
    if (ftruncate(j->fd, 0))
        return fsdp_err_sys(err, errno, "cannot write '%s'", j->path);
    FSDP_TRY(write_at_end(j, FIRST_LINE, strlen(FIRST_LINE), err));
    FSDP_TRY(write_at_end(j, head, strlen(head), err));
    FSDP_TRY(write_at_end(j, end, strlen(end), err));
    return fdatasync(j->fd) ? fsdp_err_sys(err, errno, "cannot write '%s'", j->path) : FSDP_OK;
}

/* The journal that is there. A text without a whole head was not begun. */
static int look(struct encode_journal *j, const char *head, const struct encode_opts *opts,
                struct encode_state *state, bool *found, struct fsdp_err *err)
{
    char *text = NULL;

    FSDP_TRY(read_text(j, &text, err));
    int rc = FSDP_OK;
    if (*text && !opts->resume && !opts->overwrite)
        rc = fsdp_err_set(err, FSDP_EEXIST,
                          "'%s' is of a command that was stopped; continue it (resume), or begin "
                          "anew (overwrite)",
                          j->path);
    else if (*text && opts->resume)
        rc = read_journal(j, text, head, state, found, err);
    const bool begun = *text;
    fsdp_free(text);
    FSDP_TRY(rc);
    if (*found)
        return FSDP_OK;
    if (!begun && !opts->overwrite)
        FSDP_TRY(refuse_existing(j, err));
    FSDP_TRY(remove_parts(j, err));
    return begin_anew(j, head, err);
}

static int open_locked(struct encode_journal *j, const char *path, struct fsdp_err *err)
{
    if (!(j->output = fsdp_strdup(path, err)) ||
        !(j->path = fsdp_sprintf(err, "%s" TOKENS_JOURNAL, path)))
        return FSDP_ENOMEM;
    FSDP_TRY(fsdp_file_open(&j->fd, j->path, O_RDWR | O_CREAT | O_NOFOLLOW, err));
    return lock(j, err);
}

int encode_journal_open(struct encode_journal **out, const char *path, const char *head,
                        const struct encode_opts *opts, struct encode_state *state, bool *found,
                        struct fsdp_err *err)
{
    struct encode_journal *j = fsdp_alloc(1, sizeof *j, "journal", err);

    if (!j)
        return FSDP_ENOMEM;
    j->fd = -1;
    *found = false;
    int rc = open_locked(j, path, err);
    if (rc == FSDP_OK) {
        rc = look(j, head, opts, state, found, err);
        if (rc != FSDP_OK && !j->nbytes && lseek(j->fd, 0, SEEK_END) == 0)
            encode_journal_remove(j); /* it was made just now */
    }
    if (rc == FSDP_OK)
        *out = j;
    else
        encode_journal_close(j);
    return rc;
}

int encode_journal_put(struct encode_journal *j, const struct encode_state *state,
                       struct fsdp_err *err)
{
    char line[NNUMBERS * 17 + 32];
    const int n = put_line(line, sizeof line, state);

    FSDP_TRY(write_at_end(j, line, (size_t)n, err));
    return fdatasync(j->fd) ? fsdp_err_sys(err, errno, "cannot write '%s'", j->path) : FSDP_OK;
}

void encode_journal_remove(struct encode_journal *j)
{
    unlink(j->path);
}

void encode_journal_close(struct encode_journal *j)
{
    if (!j)
        return;
    if (j->fd >= 0)
        close(j->fd);
    fsdp_free(j->path);
    fsdp_free(j->output);
    fsdp_free(j);
}
