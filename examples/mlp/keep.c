/* SPDX-License-Identifier: Apache-2.0 */
#include <ckpt/ckpt.h>

#include "keep.h"

/* What this rank holds, slice by slice: the engine describes its state, the checkpoint library
 * reads or writes it. Neither knows the other. */
static int slices(void *ctx, fsdp_slice_f *fn, void *fn_ctx, struct fsdp_err *err)
{
    return fsdp_state_each(ctx, fn, fn_ctx, err);
}

int keep_save(struct fsdp *f, const char *folder, int step, struct fsdp_oob *oob,
              struct fsdp_err *err)
{
    struct ckpt_save_args args = CKPT_SAVE_ARGS_INIT;

    args.root = folder;
    args.step = step;
    args.layout = fsdp_state_layout(f);
    args.slices = slices;
    args.slices_ctx = f;
    args.state_json = "{}"; /* what is not a tensor and must be known to continue: nothing */
    FSDP_TRY(fsdp_sync(f, err));
    FSDP_TRY(fsdp_oob_agree(oob, oob->rank ? FSDP_OK : ckpt_root_make(folder, err), err));
    return ckpt_save(NULL, &args, oob, err);
}

/* Rank 0 looks, and tells the others: the newest may change between two looks. */
static int find_newest(char path[4096], const char *folder, struct fsdp_oob *oob,
                       struct fsdp_err *err)
{
    int rc = FSDP_OK;

    path[0] = 0;
    if (oob->rank == 0)
        rc = ckpt_latest(path, 4096, folder, err);
    if (rc == FSDP_ENOTFOUND)
        rc = FSDP_OK;
    FSDP_TRY(fsdp_oob_agree(oob, rc, err));
    return fsdp_oob_broadcast(oob, path, 4096, 0, err);
}

int keep_load(int *step, struct fsdp *f, const char *folder, struct fsdp_oob *oob,
              struct fsdp_err *err)
{
    struct ckpt_load_args args = CKPT_LOAD_ARGS_INIT;
    struct ckpt *ckpt = NULL;
    char path[4096];

    *step = 0;
    FSDP_TRY(find_newest(path, folder, oob, err));
    if (!path[0])
        return FSDP_OK;
    args.slices = slices;
    args.slices_ctx = f;
    args.replica = 0; /* fsdp_state_loaded gives the values to the other replicas */
    int rc = fsdp_oob_agree(oob, ckpt_open(&ckpt, path, err), err);
    if (rc == FSDP_OK)
        rc = ckpt_load(ckpt, &args, oob, err);
    if (rc == FSDP_OK) {
        *step = (int)ckpt_step(ckpt);
        rc = fsdp_state_loaded(f, err);
    }
    ckpt_close(ckpt);
    return rc;
}
