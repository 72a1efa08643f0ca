/* SPDX-License-Identifier: Apache-2.0 */
/* save_ops.h: how the loop saves; save.c implements it, tests have their own. */
#ifndef TRAIN_SAVE_OPS_H
#define TRAIN_SAVE_OPS_H

#include "train/setup/train_state.h"

/* How the loop saves. */
struct train_save_ops {
    /* Saves the state, or begins to. last: no step follows. *saved is false where it was skipped
     * because the save before is still being written. Collective. */
    int (*save)(void *ctx, const struct train_state *state, bool last, bool *saved,
                struct fsdp_err *err);
    /* Is a save being written in the background, and is it done on this rank? Local. */
    bool (*is_writing)(void *ctx);
    bool (*is_done)(void *ctx);
    /* Waits for it, if there is one, or (all) for whatever is not yet where it belongs; its
     * failure. Called by all ranks after the same step. */
    int (*finish)(void *ctx, bool all, struct fsdp_err *err);
    /* Seconds that the flush of a staged checkpoint took that ended since this was last asked; 0:
     * none did. Local. */
    double (*flushed)(void *ctx);
};

#endif
