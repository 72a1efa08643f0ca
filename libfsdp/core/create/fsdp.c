/* SPDX-License-Identifier: Apache-2.0 */
/* Creating an engine: the plan, which all ranks agree on, then its memory. */
#include <stdlib.h>
#include <string.h>

#include "advice.h"
#include "arena.h"
#include "plan.h"

/* Cuts fall between rows, and chunks have equal sizes: tensors of few long rows cost padding. */
static void warn_of_padding(const struct fsdp *f)
{
    for (int k = 0; f->mesh->rank == 0 && k < f->units.nflats; k++) {
        const struct flat *flat = &f->units.flats[k];
        uint64_t nelem = 0, full = flat_full_nelem(flat), mib = UINT64_C(1) << 20;
        for (int i = 0; i < flat->ntensors; i++)
            nelem += fsdp_tensor_nelem(&flat->tensors[i]);
        uint64_t padding = (full - nelem) * sizeof(float);
        if ((full - nelem) * 100 > 3 * nelem && padding / (uint64_t)flat->cut.nranks > mib)
            fsdp_log(FSDP_LOG_WARN,
                     "unit '%s' is padded from %llu to %llu MiB, because its parameters have few "
                     "rows for %d ranks, of lengths without a small common multiple; sizes that "
                     "are multiples of 64, or smaller shard groups, avoid it",
                     f->tree->modules[f->units.units[flat->unit].module].name,
                     (unsigned long long)(nelem * sizeof(float) / mib),
                     (unsigned long long)(full * sizeof(float) / mib), flat->cut.nranks);
    }
}

/* One rank that has too little tells the plan, and all learn what would help. Collective. */
static int agree_on_memory(const struct fsdp *f, const struct fsdp_opts *opts, int rc,
                           struct fsdp_err *err)
{
    const bool is_short = rc == FSDP_ENOMEM || rc == FSDP_ENOSPC;

    if (is_short)
        advice_give(f, opts, err);
    rc = fsdp_oob_agree(f->mesh->oob, rc, err);
    if (is_short && !err->of_other)
        advice_log(f, opts);
    return rc;
}

static int check_device(const struct fsdp_device *device, struct fsdp_err *err)
{
    if (!fsdp_device_is_described(device, NULL))
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_EINVAL,
                        "device %s is described, not opened: it is good for fsdp_plan alone",
                        fsdp_device_name(device));
}

int fsdp_create(struct fsdp **out, const struct fsdp_module_tree *tree,
                const struct fsdp_opts *opts, struct fsdp_device *device, struct fsdp_mesh *mesh,
                struct fsdp_err *err)
{
    struct fsdp_err local = FSDP_ERR_INIT; /* agreeing needs a text, even where err is NULL */
    char *text = NULL;
    int rc = FSDP_ENOMEM;
    struct fsdp *f = fsdp_alloc(1, sizeof *f, "engine", &local);

    if (f) {
        f->tree = tree;
        f->opts = *opts;
        f->device = device;
        f->mesh = mesh;
        rc = check_device(device, &local);
        if (rc == FSDP_OK)
            rc = plan_make(f, &local);
        if (rc == FSDP_OK)
            rc = plan_text(&text, f, &local);
        plan_forget_borrowed(f);
        if (rc == FSDP_OK)
            warn_of_padding(f);
    }
    /* Local work ends in agreement before each exchange: a rank that failed must not leave the
     * others waiting in it. */
    FSDP_TRY_GOTO(fsdp_oob_agree(mesh->oob, rc, &local), out);
    FSDP_TRY_GOTO(fsdp_oob_agree_text(mesh->oob, "plan", text, &local), out);
    FSDP_TRY_GOTO(agree_on_memory(f, opts, arena_create(f, opts->offload_dir, &local), &local),
                  out);
    FSDP_TRY_GOTO(agree_on_memory(f, opts, arena_register(f, &local), &local), out);
    rc = fsdp_oob_agree(mesh->oob, arena_share(f, &local), &local);
out:
    free(text);
    if (rc) {
        fsdp_destroy(f);
        return fsdp_err_pass(err, rc, &local);
    }
    *out = f;
    return FSDP_OK;
}
