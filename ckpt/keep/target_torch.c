/* SPDX-License-Identifier: Apache-2.0 */
/* What may be replaced of the files that torch.save writes. */
#include "format/torch/saved.h"
#include "target.h"

/* What reading the file needs of a checkpoint that has it alone. */
static int list_file(struct ckpt *ckpt, const struct ckpt_store_ops *store, const char *path,
                     struct fsdp_err *err)
{
    struct ckpt_store_stat st;

    ckpt->store = store;
    FSDP_TRY(ckpt_codec_pool_create(&ckpt->pool, err));
    if (!(ckpt->path = fsdp_strdup(path, err)) || !(ckpt->folder = ckpt_path_parent(path, err)))
        return FSDP_ENOMEM;
    FSDP_TRY(ckpt_store_stat(&st, store, path, err));
    FSDP_TRY(ckpt_layout_add_file(&ckpt->m.layout, ckpt_path_base(path), st.nbytes, err));
    return ckpt_readers_create(ckpt, err);
}

int ckpt_target_prove_saved(const struct ckpt_store_ops *store, const char *path,
                            struct fsdp_err *err)
{
    struct ckpt *ckpt = fsdp_alloc(1, sizeof *ckpt, "checkpoint", err);
    struct ckpt_saved saved = {0};

    if (!ckpt)
        return FSDP_ENOMEM;
    pthread_mutex_init(&ckpt->lock, NULL);
    int rc = list_file(ckpt, store, path, err);
    if (rc == FSDP_OK)
        rc = ckpt_saved_open(&saved, ckpt, 0, ckpt_pickle_parse, err);
    if (rc == FSDP_OK) {
        rc = ckpt_saved_prove_dict(&saved, err);
        ckpt_saved_close(&saved);
    }
    ckpt_close(ckpt);
    return rc;
}
