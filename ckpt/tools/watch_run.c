/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A run keeps the note running.json next to its checkpoints, and changes it every few seconds; one
 * that ends takes it away, one that was killed leaves it. One that is started again after a pause
 * (a requeued job) makes it anew. Where checkpoints are in a folder, status.json says how the last
 * run has ended.
 */
#include <string.h>

#include "watch.h"

enum { SILENT_BEATS = 4, LONGEST_BEAT_S = 60 };

static double beat_of(const char *text)
{
    json_t *note = json_loads(text, 0, NULL);
    const double beat = (double)json_integer_value(json_object_get(note, "beat_seconds"));
    json_decref(note);
    return beat > 0 && beat <= LONGEST_BEAT_S ? beat : LONGEST_BEAT_S;
}

/* Has all that was to be done been done? */
static bool is_complete(const char *root)
{
    char *text = NULL;
    bool done = false;
    if (ckpt_path_is_url(root) || ckpt_note_read(&text, root, "status.json", NULL))
        return false;
    json_t *status = json_loads(text, 0, NULL);
    const char *state = json_string_value(json_object_get(status, "state"));
    done = state && !strcmp(state, "done");
    json_decref(status);
    fsdp_free(text);
    return done;
}

bool watch_run_is_over(struct watch_run *run, const struct watch_args *args)
{
    const double now = fsdp_time_now();
    char *text = NULL;
    struct fsdp_err why = FSDP_ERR_INIT;
    const int rc = ckpt_note_read(&text, args->root, "running.json", &why);

    if (rc && rc != FSDP_ENOTFOUND)
        return false; /* a store that does not answer says nothing */
    if (rc == FSDP_OK) {
        const uint64_t hash = fsdp_hash(FSDP_HASH_SEED, text, strlen(text));
        const double silence = SILENT_BEATS * beat_of(text);
        fsdp_free(text);
        if (hash != run->hash) {
            run->hash = hash;
            run->changed = now;
            run->seen = true;
        }
        if (now - run->changed < silence) {
            run->alone = 0;
            return false;
        }
    } else if (run->seen && is_complete(args->root)) {
        return true;
    }
    if (run->alone <= 0)
        run->alone = now;
    return now - run->alone >= args->end_s;
}
