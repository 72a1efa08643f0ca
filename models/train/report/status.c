/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "status.h"

enum { VERSION = 1, MAX_NBYTES = 1 << 16 };

static const char *const words[] = {
    [STATUS_STARTING] = "starting",     [STATUS_RUNNING] = "running", [STATUS_SAVING] = "saving",
    [STATUS_EVALUATING] = "evaluating", [STATUS_HUNG] = "hung",       [STATUS_STOPPED] = "stopped",
    [STATUS_FAILED] = "failed",         [STATUS_DONE] = "done"};
enum { NSTATES = sizeof words / sizeof words[0] };

const char *status_word(enum status_state state)
{
    return words[state];
}

/* ---- fields ---------------------------------------------------------------------------------- */

enum kind { TEXT, INT, INT64, NUMBER };

/* A field in the file. Objects of the file are structs of the record: "saved.step". */
#define AT(field) offsetof(struct status, field)
#define TEXT_AT(field) TEXT, AT(field), sizeof((struct status *)0)->field
static const struct {
    const char *object, *key; /* object NULL: of the file itself */
    enum kind kind;
    size_t offset, nbytes;
} fields[] = {
    {NULL, "step", INT64, AT(step), 0},
    {NULL, "steps", INT64, AT(steps), 0},
    {NULL, "first_step", INT64, AT(first_step), 0},
    {NULL, "loss", NUMBER, AT(loss), 0},
    {NULL, "eval_loss", NUMBER, AT(eval_loss), 0},
    {NULL, "lr", NUMBER, AT(lr), 0},
    {NULL, "tokens_per_s", NUMBER, AT(tokens_per_s), 0},
    {NULL, "mfu", NUMBER, AT(mfu), 0},
    {NULL, "step_seconds", NUMBER, AT(step_s), 0},
    {NULL, "attempt", INT, AT(attempt), 0},
    {NULL, "ranks", INT, AT(ranks), 0},
    {NULL, "nodes", INT, AT(nodes), 0},
    {NULL, "began", NUMBER, AT(began), 0},
    {NULL, "written", NUMBER, AT(at), 0},
    {NULL, "step_ended", NUMBER, AT(step_at), 0},
    {NULL, "reason", TEXT_AT(reason)},
    {NULL, "config", TEXT_AT(config)},
    {NULL, "checkpoints", TEXT_AT(checkpoints)},
    {NULL, "metrics", TEXT_AT(metrics)},
    {NULL, "job", TEXT_AT(job)},
    {"saved", "step", INT64, AT(saved.step), 0},
    {"saved", "at", NUMBER, AT(saved.at), 0},
    {"slowest", "rank", INT, AT(slowest.rank), 0},
    {"slowest", "seconds", NUMBER, AT(slowest.seconds), 0},
    {"hung", "rank", INT, AT(hung.rank), 0},
    {"hung", "host", TEXT_AT(hung.host)},
    {"hung", "where", TEXT_AT(hung.where)},
    {"process", "host", TEXT_AT(process.host)},
    {"process", "pid", INT, AT(process.pid), 0},
    {"process", "begun", INT64, AT(process.begun), 0},
    {"process", "place", TEXT_AT(process.place)},
};
enum { NFIELDS = sizeof fields / sizeof fields[0] };

/* JSON is UTF-8; a path need not be. */
static json_t *text_value(const char *text)
{
    char clean[1024];
    json_t *value = json_string(text);

    if (value)
        return value;
    snprintf(clean, sizeof clean, "%s", text);
    return json_string(fsdp_text_clean(clean));
}

static json_t *value_of(const struct status *status, int i)
{
    const void *at = (const char *)status + fields[i].offset;

    switch (fields[i].kind) {
    case TEXT:
        return text_value(at);
    case INT:
        return json_integer(*(const int *)at);
    case INT64:
        return json_integer(*(const int64_t *)at);
    case NUMBER:
        break;
    }
    const double x = *(const double *)at;
    return isfinite(x) ? json_real(x) : json_null();
}

static void take_value(struct status *status, int i, const json_t *value)
{
    void *at = (char *)status + fields[i].offset;

    switch (fields[i].kind) {
    case TEXT:
        if (json_is_string(value))
            snprintf(at, fields[i].nbytes, "%s", json_string_value(value));
        break;
    case INT:
        if (json_is_integer(value))
            *(int *)at = (int)json_integer_value(value);
        break;
    case INT64:
        if (json_is_integer(value))
            *(int64_t *)at = json_integer_value(value);
        break;
    case NUMBER:
        *(double *)at = json_is_number(value) ? json_number_value(value) : (double)NAN;
    }
}

/* ---- files ----------------------------------------------------------------------------------- */

static char *to_text(const struct status *status)
{
    json_t *root = json_pack("{s:i, s:s}", "version", VERSION, "state", status_word(status->state));

    for (int i = 0; i < NFIELDS && root; i++) {
        json_t *object = root;
        if (fields[i].object) {
            object = json_object_get(root, fields[i].object);
            if (!object && json_object_set_new(root, fields[i].object, json_object()) == 0)
                object = json_object_get(root, fields[i].object);
        }
        json_object_set_new(object, fields[i].key, value_of(status, i));
    }
    char *text = root ? json_dumps(root, JSON_INDENT(1) | JSON_REAL_PRECISION(12)) : NULL;
    json_decref(root);
    return text;
}

static int write_all(const char *path, const char *text, struct fsdp_err *err)
{
    const size_t nbytes = strlen(text);
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);

    if (fd < 0)
        return fsdp_err_sys(err, errno, "%s", path);
    const ssize_t done = write(fd, text, nbytes);
    const int failed = done < 0 ? errno : (size_t)done < nbytes ? ENOSPC : 0;
    if ((close(fd) && !failed) || failed)
        return fsdp_err_sys(err, failed ? failed : errno, "%s", path);
    return FSDP_OK;
}

/* The temporary name is one that ckpt-info --gc removes, and always the same: killed writers leave
 * one at most. */
static char *temporary_name(const char *path, struct fsdp_err *err)
{
    return fsdp_sprintf(
        err, "%s.tmp.%016llx", path,
        (unsigned long long)fsdp_hash(FSDP_HASH_SEED, STATUS_NAME, sizeof STATUS_NAME - 1));
}

int status_write(const struct status *status, const char *path, struct fsdp_err *err)
{
    char *text = to_text(status), *temporary = temporary_name(path, err);
    int rc = text && temporary ? write_all(temporary, text, err)
                               : fsdp_err_set(err, FSDP_ENOMEM, "%s: out of memory", path);

    if (rc == FSDP_OK && rename(temporary, path) != 0)
        rc = fsdp_err_sys(err, errno, "%s", path);
    if (rc && temporary)
        unlink(temporary);
    fsdp_free(temporary);
    free(text);
    return rc;
}

static int state_of(const json_t *root)
{
    const char *word = json_string_value(json_object_get(root, "state"));

    for (int i = 0; word && i < NSTATES; i++)
        if (!strcmp(word, words[i]))
            return i;
    return -1;
}

bool status_may_replace(const char *path)
{
    char *text = NULL;
    size_t nbytes = 0;
    struct stat st;

    if (stat(path, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > MAX_NBYTES)
        return false;
    if (fsdp_file_read(&text, &nbytes, path, MAX_NBYTES, NULL) != FSDP_OK)
        return true; /* not there, or rename will tell */
    json_t *root = json_loadb(text, nbytes, 0, NULL);
    fsdp_free(text);
    const bool ours = !root || (json_is_integer(json_object_get(root, "version")) &&
                                json_is_string(json_object_get(root, "state")));
    json_decref(root);
    return ours;
}

int status_read(struct status *out, const char *path, struct fsdp_err *err)
{
    char *text = NULL;
    size_t nbytes = 0;

    FSDP_TRY(fsdp_file_read(&text, &nbytes, path, MAX_NBYTES, err));
    json_t *root = json_loadb(text, nbytes, 0, NULL);
    const int state = state_of(root);
    fsdp_free(text);
    if (state < 0 || json_integer_value(json_object_get(root, "version")) != VERSION) {
        json_decref(root);
        return fsdp_err_set(err, FSDP_ECORRUPT, "%s: this is no status of a run", path);
    }
    *out = (struct status){.state = (enum status_state)state,
                           .loss = (double)NAN,
                           .eval_loss = (double)NAN,
                           .saved.step = -1,
                           .slowest.rank = -1,
                           .hung.rank = -1};
    for (int i = 0; i < NFIELDS; i++)
        take_value(
            out, i,
            json_object_get(fields[i].object ? json_object_get(root, fields[i].object) : root,
                            fields[i].key));
    json_decref(root);
    return FSDP_OK;
}
