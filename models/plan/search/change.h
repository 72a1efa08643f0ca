/* SPDX-License-Identifier: Apache-2.0 */
/* change.h: what can be changed about a run or its cluster, and what kind of change it is. */
#ifndef SEARCH_CHANGE_H
#define SEARCH_CHANGE_H

#include "plan/answer/answer.h"

enum change_group {
    CHANGE_SAME,     /* the same numbers come out */
    CHANGE_NUMERICS, /* arithmetic in other types */
    CHANGE_BATCH,    /* another number of rows a step */
    CHANGE_BUY,      /* another cluster */
    CHANGE_NGROUPS
};
const char *change_group_name(enum change_group group);

enum { CHANGE_MAX_SETTINGS = 20, CHANGE_TEXT = 64 };
struct change {
    enum change_group group;
    /* Settings of the run, section.key=value; of CHANGE_BUY keys of the cluster, and "gpus=N". */
    char setting[CHANGE_MAX_SETTINGS][CHANGE_TEXT];
    int nsettings;
    int nnumerics; /* settings among them that change numbers */
};

/* What may help a run whose answer is known, each change alone; none that is there already.
 * Returns their number, at most max. Pure. */
int change_list(struct change *out, int max, const struct answer *answer,
                const struct question *question);
/* Settings of updates at the reduction (fsdp.update_at) that the run allows, separated by spaces,
 * and what they change: CHANGE_SAME where the run does not clip. Before them come other settings,
 * where there are any. "" where the run has them already. */
/* What a plan with fsdp.offload_update auto came to becomes part of the change, so that a run does
 * the same by another clock: `host`, and where `both` also `device`. */
void change_pin_update(struct change *change, const struct answer *then, bool both);
enum { CHANGE_EARLY_NBYTES = 4 * CHANGE_TEXT };
enum change_group change_early(char out[CHANGE_EARLY_NBYTES], const struct answer *answer);
/* Has a node disks whose size and rate are known, and the run no folder for its state? Then
 * CHANGE_TO_DISKS puts it there. */
bool change_has_disks(const struct answer *answer, const struct question *question);
#define CHANGE_TO_DISKS "fsdp.offload_dir=FILL_IN"
#define CHANGE_ACTS "fsdp.offload_activations=true"
#define CHANGE_GRADS "fsdp.offload_gradients=true"
/* Two at once. false where both set one key, or they are too many. */
bool change_join(struct change *out, const struct change *a, const struct change *b);
/* "fsdp.two_level=true train.micro_batch_size=2", "--what-if gpu=h200", "--gpus 64": what one
 * types; into out, which is returned. */
const char *change_text(char *out, size_t out_nbytes, const struct change *change);

/* The answer to a question with a change. FSDP_EINVAL where that cannot be. */
int change_answer(struct answer *out, const struct question *question, const struct change *change,
                  struct fsdp_err *err);

#endif
