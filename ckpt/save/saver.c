/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The collective save.
 *
 *   all     describe the tensors, compare that description, list the boxes to write
 *   rank 0  makes root/step-N.tmp.<uuid>, tells the uuid
 *   all     write their own files there, fsync
 *   all     report boxes, sizes and checksums
 *   rank 0  proves coverage, writes the manifest, renames to root/step-N, fsyncs root
 *
 * Between these steps all agree on one status; after a failure rank 0 removes the folder. Nothing
 * is learned by looking at another rank's files.
 *
 * In staging a leader of each node does what rank 0 does to the folder, in its node's own; rank 0's
 * manifest goes to all of them.
 */
#include <stdio.h>
#include <string.h>

#include "source/source.h"
#include "saver.h"
#include "layout/tensor_name.h"
#include "util/text.h"

/* ---- what is saved: the same on every rank --------------------------------------------------- */

static int check_name(const char *unit, const char *name, struct fsdp_err *err)
{
    const char *wrong = ckpt_tensor_name_wrong(name, false);
    return wrong ? fsdp_err_set(err, FSDP_EINVAL, "unit '%s': tensor '%.200s' cannot be stored: %s",
                                unit, name, wrong)
                 : FSDP_OK;
}

static int describe_optim(struct ckpt_saver *s, const struct fsdp_flat_desc *flat, int param,
                          struct fsdp_err *err)
{
    const struct fsdp_state_layout *layout = s->args->layout;
    for (int i = 0; i < layout->nslots; i++) {
        struct fsdp_tensor tensor = fsdp_slot_tensor(&layout->slots[i], &flat->tensors[param]);
        if (!fsdp_flat_has_slot(flat, param, i))
            continue;
        char *name =
            fsdp_sprintf(err, "state.%s.%s", flat->tensors[param].name, layout->slots[i].name);
        if (!name)
            return FSDP_ENOMEM;
        tensor.name = name;
        int rc = check_name(flat->unit, name, err);
        if (rc == FSDP_OK)
            rc = ckpt_layout_add_tensor(&s->m.layout, &tensor, FSDP_SLICE_OPTIM, err);
        fsdp_free(name);
        FSDP_TRY(rc);
    }
    return FSDP_OK;
}

static int describe_unit(struct ckpt_saver *s, const struct fsdp_flat_desc *flat,
                         struct fsdp_err *err)
{
    struct ckpt_unit *unit = &s->m.units[s->m.nunits++];
    unit->trainable = flat->trainable;
    unit->name = fsdp_strdup(flat->unit, err);
    unit->tensors = fsdp_alloc((size_t)flat->ntensors, sizeof *unit->tensors, "unit", err);
    if (!unit->name || !unit->tensors)
        return FSDP_ENOMEM;
    for (int i = 0; i < flat->ntensors; i++) {
        const struct fsdp_tensor *tensor = &flat->tensors[i];
        if (!tensor->name)
            return fsdp_err_set(err, FSDP_EINVAL, "unit '%s', tensor %d has no name", flat->unit,
                                i);
        FSDP_TRY(check_name(flat->unit, tensor->name, err));
        FSDP_TRY(fsdp_tensor_check(tensor, err));
        unit->tensors[unit->ntensors++] = s->m.layout.ntensors;
        FSDP_TRY(ckpt_layout_add_tensor(&s->m.layout, tensor, FSDP_SLICE_MODEL, err));
        FSDP_TRY(describe_optim(s, flat, i, err));
    }
    return FSDP_OK;
}

static int describe_aliases(struct ckpt_saver *s, struct fsdp_err *err)
{
    const struct ckpt_save_args *args = s->args;
    s->m.aliases = fsdp_alloc((size_t)args->naliases, sizeof *s->m.aliases, "aliases", err);
    if (!s->m.aliases)
        return FSDP_ENOMEM;
    for (int i = 0; i < args->naliases; i++) {
        const struct ckpt_alias *from = &args->aliases[i];
        if (ckpt_layout_find(&s->m.layout, from->target) < 0 ||
            ckpt_layout_find(&s->m.layout, from->name) >= 0 ||
            ckpt_tensor_name_wrong(from->name, false))
            return fsdp_err_set(err, FSDP_EINVAL,
                                "alias '%s' of '%s': it must be a new name for a stored tensor",
                                from->name, from->target);
        struct ckpt_alias *to = &s->m.aliases[s->m.naliases++];
        to->name = fsdp_strdup(from->name, err);
        to->target = fsdp_strdup(from->target, err);
        if (!to->name || !to->target)
            return FSDP_ENOMEM;
    }
    return FSDP_OK;
}

static int describe_state(struct ckpt_saver *s, struct fsdp_err *err)
{
    const char *text = s->args->state_json;
    json_t *parsed;
    if (!text || s->oob->rank != 0)
        return FSDP_OK;
    if (ckpt_json_parse(&parsed, text, strlen(text), "the training state", err))
        return FSDP_EINVAL;
    json_decref(parsed);
    s->m.state_json = fsdp_strdup(text, err);
    return s->m.state_json ? FSDP_OK : FSDP_ENOMEM;
}

static int describe_tensors(struct ckpt_saver *s, struct fsdp_err *err)
{
    const struct fsdp_state_layout *layout = s->args->layout;

    s->m.step = s->args->step;
    s->m.shard_size = layout->shard_size;
    s->m.replicate_size = layout->replicate_size;
    if (layout->shard_size < 1 || layout->replicate_size < 1 || layout->inner_size < 0 ||
        (layout->inner_size && layout->shard_size % layout->inner_size) ||
        (int64_t)layout->shard_size * layout->replicate_size != s->oob->size)
        return fsdp_err_set(err, FSDP_EINVAL, "a mesh of %d x %d does not make %d ranks",
                            layout->replicate_size, layout->shard_size, s->oob->size);
    s->m.units = fsdp_alloc((size_t)layout->nflats, sizeof *s->m.units, "units", err);
    s->m.optim = fsdp_alloc((size_t)layout->nslots, sizeof *s->m.optim, "optim", err);
    if (!s->m.units || !s->m.optim)
        return FSDP_ENOMEM;
    for (int i = 0; i < layout->nflats; i++)
        FSDP_TRY(describe_unit(s, &layout->flats[i], err));
    for (int i = 0; i < layout->nslots; i++) {
        if (!(s->m.optim[i].name = fsdp_strdup(layout->slots[i].name, err)))
            return FSDP_ENOMEM;
        s->m.optim[i].kind = layout->slots[i].kind;
        s->m.noptim++;
    }
    for (int i = 0; i < s->m.layout.ntensors; i++)
        s->m.layout.tensors[i].has_fingerprint = true;
    int rc = ckpt_layout_index(&s->m.layout, err);
    if (rc)
        return rc == FSDP_ECORRUPT ? FSDP_EINVAL : rc; /* the same name twice */
    FSDP_TRY(describe_aliases(s, err));
    return describe_state(s, err);
}

/* All ranks must mean the same checkpoint. The manifest without files is the description to
 * compare. */
static int compare_layouts(struct ckpt_saver *s, struct fsdp_err *err)
{
    char *text = NULL, *state = s->m.state_json;
    uint64_t *all = fsdp_alloc((size_t)s->oob->size, sizeof *all, "hashes", err), mine = 0;
    size_t nbytes = 0;

    s->m.state_json = NULL; /* rank 0's is kept, the others' may differ */
    int rc = all ? ckpt_manifest_format(&text, &nbytes, &s->m, err) : FSDP_ENOMEM;
    s->m.state_json = state;
    if (rc == FSDP_OK) {
        mine = fsdp_hash(FSDP_HASH_SEED, text, nbytes);
        mine = fsdp_hash(mine, s->args->root, strlen(s->args->root) + 1);
    }
    fsdp_free(text);
    rc = fsdp_oob_agree(s->oob, rc, err);
    if (rc == FSDP_OK)
        rc = s->oob->allgather(s->oob, &mine, sizeof mine, all, err);
    for (int r = 1; rc == FSDP_OK && r < s->oob->size; r++)
        if (all[r] != all[0])
            rc = fsdp_err_set(err, FSDP_EMISMATCH,
                              "saving step %lld: ranks 0 and %d differ in folder, step, tensors, "
                              "units, mesh or aliases",
                              (long long)s->args->step, r);
    fsdp_free(all);
    return rc;
}

/* ---- the steps ------------------------------------------------------------------------------- */

static int check_args(const struct ckpt_save_args *args, struct fsdp_err *err)
{
    if (args->version != CKPT_SAVE_ARGS_VERSION)
        return fsdp_err_set(err, FSDP_EINVAL, "ckpt_save: arguments of version %u", args->version);
    if (!args->root || !args->root[0] || !args->layout || !args->slices || args->step < 0 ||
        args->naliases < 0 || args->nextra < 0)
        return fsdp_err_set(err, FSDP_EINVAL, "ckpt_save: a required argument is missing");
    if (args->nextra > CKPT_MAX_EXTRAS)
        return fsdp_err_set(err, FSDP_EINVAL, "ckpt_save: more than %d files to keep",
                            CKPT_MAX_EXTRAS);
    return FSDP_OK;
}

static int prepare_save(struct ckpt_saver *s, struct fsdp_err *err)
{
    FSDP_TRY(check_args(s->args, err));
    s->root = s->staged ? s->args->staging : s->args->root;
    s->leads = s->oob->rank == 0;
    FSDP_TRY(ckpt_store_of(&s->store, s->root, err));
    if (s->args->compress == CKPT_COMPRESS_ZSTD)
        FSDP_TRY(ckpt_codec_check(s->args->root, err));
    FSDP_TRY(describe_tensors(s, err));
    return ckpt_save_collect(s, err);
}

int ckpt_save_name(struct ckpt_saver *s, struct fsdp_err *err)
{
    char name[128];
    snprintf(name, sizeof name, "step-%08lld", (long long)s->args->step);
    s->commit = (struct ckpt_commit){.store = s->store,
                                     .final = ckpt_path_join(s->root, name, err),
                                     .attempt = s->m.uuid,
                                     .folder = true,
                                     .has_manifest = true,
                                     .sync = s->args->fsync};
    if (!s->commit.final)
        return FSDP_ENOMEM;
    FSDP_TRY(ckpt_commit_begin(&s->commit, err));
    if (strlen(s->commit.final) >= sizeof((struct ckpt_save_result *)0)->path)
        return fsdp_err_set(err, FSDP_EINVAL, "'%s': path too long", s->commit.final);
    return FSDP_OK;
}

static uint64_t pieces_nbytes(const struct ckpt_saver *s)
{
    uint64_t nbytes = 0;
    for (size_t i = 0; i < s->npieces; i++) {
        const struct fsdp_tensor *tensor = &s->m.layout.tensors[s->pieces[i].tensor].tensor;
        nbytes +=
            fsdp_box_nelem(&s->pieces[i].box, tensor->ndim) * fsdp_dtype_nbytes(tensor->dtype);
    }
    return nbytes;
}

/* The first rank of each node leads, and looks whether there is room for what its ranks write. */
static int lead_nodes(struct ckpt_saver *s, struct fsdp_err *err)
{
    struct claim {
        int64_t node;
        uint64_t nbytes;
    } mine = {s->args->node, pieces_nbytes(s)};
    struct claim *all = fsdp_alloc((size_t)s->oob->size, sizeof *all, "staging", err);
    uint64_t needed = 0, room = 0;
    char need[FSDP_NBYTES_TEXT], has[FSDP_NBYTES_TEXT];

    int rc = fsdp_oob_agree(s->oob, all ? FSDP_OK : FSDP_ENOMEM, err);
    if (rc == FSDP_OK)
        rc = s->oob->allgather(s->oob, &mine, sizeof mine, all, err);
    s->leads = true;
    for (int r = 0; rc == FSDP_OK && r < s->oob->size; r++) {
        s->leads &= r >= s->oob->rank || all[r].node != mine.node;
        needed += all[r].node == mine.node ? all[r].nbytes : 0;
    }
    fsdp_free(all);
    FSDP_TRY(rc);
    if (s->leads)
        rc = ckpt_store_mkdirs(s->store, s->root, err);
    if (rc == FSDP_OK && s->leads)
        rc = ckpt_store_space(&room, s->store, s->root, err);
    if (rc == FSDP_OK && s->leads && room < needed)
        rc = fsdp_err_set(err, FSDP_ENOSPC, "'%s' has %s free, and the checkpoint takes %s there",
                          s->root, fsdp_nbytes_text(has, room), fsdp_nbytes_text(need, needed));
    return fsdp_oob_agree(s->oob, rc, err);
}

/* Who leads makes the folder; every rank learns its name, and whether files are compressed. */
static int begin_save(struct ckpt_saver *s, struct fsdp_err *err)
{
    struct {
        char uuid[sizeof s->m.uuid];
        bool compress;
    } told;
    int rc = FSDP_OK;
    if (s->staged)
        FSDP_TRY(lead_nodes(s, err));
    if (s->oob->rank == 0)
        rc = ckpt_uuid_make(s->m.uuid, err);
    if (rc == FSDP_OK && s->oob->rank == 0)
        rc = ckpt_save_choose(s, err);
    FSDP_TRY(fsdp_oob_agree(s->oob, rc, err));
    memcpy(told.uuid, s->m.uuid, sizeof told.uuid);
    told.compress = s->compress;
    FSDP_TRY(fsdp_oob_broadcast(s->oob, &told, sizeof told, 0, err));
    memcpy(s->m.uuid, told.uuid, sizeof told.uuid);
    s->compress = told.compress;
    rc = ckpt_save_name(s, err);
    if (rc == FSDP_OK && s->leads)
        rc = ckpt_save_begin(s, err);
    return fsdp_oob_agree(s->oob, rc, err);
}

/* This rank's files and pieces, as one message. */
static int report_make(char **out, size_t *out_nbytes, const struct ckpt_saver *s,
                       struct fsdp_err *err)
{
    *out_nbytes = sizeof s->files + s->npieces * sizeof *s->pieces;
    if (!(*out = fsdp_alloc(*out_nbytes, 1, "save report", err)))
        return FSDP_ENOMEM;
    memcpy(*out, s->files, sizeof s->files);
    if (s->npieces)
        memcpy(*out + sizeof s->files, s->pieces, s->npieces * sizeof *s->pieces);
    return FSDP_OK;
}

static uint64_t reports_nbytes(const char *reports, const size_t *lens, int nranks)
{
    uint64_t total = 0;
    for (int r = 0; r < nranks; reports += lens[r++]) {
        struct ckpt_saved_file files[CKPT_NKINDS];
        memcpy(files, reports, sizeof files);
        total += files[0].nbytes + files[1].nbytes;
    }
    return total;
}

/* The manifest, from rank 0, whose status so far is `gathered`; in staging all who lead get it. */
static int publish_save(struct ckpt_saver *s, int gathered, struct fsdp_err *err)
{
    char *text = NULL;
    void *told = NULL;
    size_t nbytes = 0, *lens = fsdp_alloc((size_t)s->oob->size, sizeof *lens, "lens", err);
    int rc = gathered ? gathered : lens ? FSDP_OK : FSDP_ENOMEM;

    if (rc == FSDP_OK && s->oob->rank == 0)
        rc = ckpt_manifest_format(&text, &nbytes, &s->m, err);
    if (s->staged) {
        FSDP_TRY_GOTO(fsdp_oob_agree(s->oob, rc, err), out);
        FSDP_TRY_GOTO(fsdp_oob_allgatherv(s->oob, text, nbytes, &told, lens, err), out);
        nbytes = lens[0];
    }
    if (rc == FSDP_OK && s->leads)
        rc = ckpt_save_publish(s, told ? told : text, nbytes, err);
    /* What one node has published another may have failed to: only rank 0's word is final. */
    s->committed = !s->staged && s->commit.published && rc == FSDP_OK;
    FSDP_TRY_GOTO(fsdp_oob_agree(s->oob, rc, err), out);
out:
    fsdp_free(told);
    fsdp_free(text);
    fsdp_free(lens);
    return rc;
}

static int report_and_commit(struct ckpt_saver *s, uint64_t *nbytes, struct fsdp_err *err)
{
    char *report = NULL;
    void *reports = NULL;
    size_t report_nbytes = 0, *lens = fsdp_alloc((size_t)s->oob->size, sizeof *lens, "lens", err);
    int rc = lens ? report_make(&report, &report_nbytes, s, err) : FSDP_ENOMEM;

    FSDP_TRY_GOTO(fsdp_oob_agree(s->oob, rc, err), out);
    s->handed_over =
        true; /* who leads may publish these files, even if this rank never hears of it */
    FSDP_TRY_GOTO(fsdp_oob_allgatherv(s->oob, report, report_nbytes, &reports, lens, err), out);
    if (s->oob->rank == 0)
        rc = ckpt_save_gather(s, reports, lens, err);
    *nbytes = reports_nbytes(reports, lens, s->oob->size);
    rc = publish_save(s, rc, err);
out:
    fsdp_free(reports);
    fsdp_free(report);
    fsdp_free(lens);
    return rc;
}

static int run_save(struct ckpt_saver *s, uint64_t *nbytes, struct fsdp_err *err)
{
    FSDP_TRY(fsdp_oob_agree(s->oob, prepare_save(s, err), err));
    FSDP_TRY(compare_layouts(s, err));
    FSDP_TRY(begin_save(s, err));
    FSDP_TRY(fsdp_oob_agree(s->oob, ckpt_save_write(s, err), err));
    return report_and_commit(s, nbytes, err);
}

/* Takes back what this rank did. Ranks arrive here together unless one was lost. Until its files
 * are handed over each rank removes its own; from then on they are theirs who lead, who may be
 * publishing them while others learn of a loss. */
void ckpt_save_undo(struct ckpt_saver *s)
{
    for (int kind = 0; s->commit.out && !s->handed_over && kind < CKPT_NKINDS; kind++) {
        char *name =
            s->files[kind].header_nbytes
                ? ckpt_shard_name(kind, ckpt_save_number(s, s->oob->rank), s->compress, NULL)
                : NULL;
        char *path = name ? ckpt_path_join(s->commit.out, name, NULL) : NULL;
        if (path && !s->commit.published)
            ckpt_store_remove(s->store, path, NULL);
        fsdp_free(path);
        fsdp_free(name);
    }
    if (!s->made_temp ||
        s->committed) /* committed, and then a rank was lost: it is good, it stays */
        return;
    ckpt_commit_discard(&s->commit);
}

void ckpt_save_free(struct ckpt_saver *s)
{
    ckpt_manifest_free(&s->m);
    fsdp_free(s->pieces);
    ckpt_commit_end(&s->commit);
}

static int save_to(struct ckpt_save_result *out, const struct ckpt_save_args *args, bool staged,
                   struct fsdp_oob *oob, struct fsdp_err *err)
{
    struct ckpt_saver s = {.args = args, .oob = oob, .staged = staged};
    double begun = fsdp_time_now();
    uint64_t nbytes = 0;

    int rc = run_save(&s, &nbytes, err);
    if (rc) {
        ckpt_save_undo(&s);
    } else if (out) {
        *out = (struct ckpt_save_result){
            .nbytes = nbytes, .seconds = fsdp_time_now() - begun, .staged = staged};
        strcpy(out->path, s.commit.final);
    }
    ckpt_save_free(&s);
    return rc;
}

/* Is it the staging folder's fault, so that another place may do? */
static bool is_of_folder(int rc)
{
    return rc == FSDP_EIO || rc == FSDP_ENOSPC || rc == FSDP_ENOTFOUND || rc == FSDP_EEXIST;
}

int ckpt_save(struct ckpt_save_result *out, const struct ckpt_save_args *args, struct fsdp_oob *oob,
              struct fsdp_err *err)
{
    /* Agreeing needs a text, whether the caller wants it or not. */
    struct fsdp_err why = FSDP_ERR_INIT;
    bool staged = args->version == CKPT_SAVE_ARGS_VERSION && args->staging;
    int rc = save_to(out, args, staged, oob, &why);

    if (staged && is_of_folder(rc)) {
        if (oob->rank == 0)
            fsdp_log(FSDP_LOG_WARN, "step %lld is not staged but saved to '%s' at once: %s",
                     (long long)args->step, args->root, why.text);
        why = (struct fsdp_err)FSDP_ERR_INIT;
        rc = save_to(out, args, false, oob, &why);
    }
    return fsdp_err_pass(err, rc, &why);
}
