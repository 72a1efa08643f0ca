/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A checkpoint of a 70B Llama with AdamW from 1,024 ranks, manifest and headers alone (the data are
 * holes): opened and planned, for 512 ranks and as one model, within the memory of the tools.
 */
#include <fcntl.h>
#include <sys/resource.h>

#include "../../ckpt/layout/contents.h"
#include "../../ckpt/file/safetensors.h"
#include "../../ckpt/save/saver.h"
#include "fake_state.h"

enum { NRANKS = 1024, NLAYERS = 80, DIM = 8192, FFN = 28672, VOCAB = 128256, KV = 1024 };
enum { MEM = 256 << 20, LIMIT_MIB = 256 + 32 };

static char root[300];

static void add(struct ckpt_manifest *m, struct ckpt_unit *unit, const char *name, uint64_t rows,
                uint64_t columns)
{
    static const char *const optim[] = {"exp_avg", "exp_avg_sq"};
    struct fsdp_tensor t = {.name = name, .ndim = columns ? 2 : 1, .shape = {rows, columns}};
    unit->tensors[unit->ntensors++] = m->layout.ntensors;
    ckpt_layout_add_tensor(&m->layout, &t, FSDP_SLICE_MODEL, NULL);
    for (int i = 0; i < 2; i++) {
        char state[200];
        snprintf(state, sizeof state, "state.%s.%s", name, optim[i]);
        t.name = state;
        ckpt_layout_add_tensor(&m->layout, &t, FSDP_SLICE_OPTIM, NULL);
    }
}

static struct ckpt_unit *new_unit(struct ckpt_manifest *m, const char *name)
{
    struct ckpt_unit *unit = &m->units[m->nunits++];
    unit->name = fsdp_strdup(name, NULL);
    unit->trainable = true;
    unit->tensors = fsdp_alloc(16, sizeof *unit->tensors, "unit", NULL);
    return unit;
}

static void describe(struct ckpt_manifest *m)
{
    static const struct {
        const char *name;
        uint64_t rows, columns;
    } layer[] = {{"self_attn.q_proj.weight", DIM, DIM},      {"self_attn.k_proj.weight", KV, DIM},
                 {"self_attn.v_proj.weight", KV, DIM},       {"self_attn.o_proj.weight", DIM, DIM},
                 {"mlp.gate_proj.weight", FFN, DIM},         {"mlp.up_proj.weight", FFN, DIM},
                 {"mlp.down_proj.weight", DIM, FFN},         {"input_layernorm.weight", DIM, 0},
                 {"post_attention_layernorm.weight", DIM, 0}};
    memset(m, 0, sizeof *m);
    strcpy(m->uuid, "00000000-0000-4000-8000-000000000000");
    m->step = 1;
    m->shard_size = NRANKS;
    m->replicate_size = 1;
    m->units = fsdp_alloc(NLAYERS + 1, sizeof *m->units, "units", NULL);
    m->optim = fsdp_alloc(2, sizeof *m->optim, "optim", NULL);
    m->optim[m->noptim++].name = fsdp_strdup("exp_avg", NULL);
    m->optim[m->noptim++].name = fsdp_strdup("exp_avg_sq", NULL);
    struct ckpt_unit *unit = new_unit(m, "");
    add(m, unit, "model.embed_tokens.weight", VOCAB, DIM);
    add(m, unit, "model.norm.weight", DIM, 0);
    add(m, unit, "lm_head.weight", VOCAB, DIM);
    for (int l = 0; l < NLAYERS; l++) {
        char name[100];
        snprintf(name, sizeof name, "model.layers.%d", l);
        unit = new_unit(m, name);
        for (size_t i = 0; i < sizeof layer / sizeof layer[0]; i++) {
            snprintf(name, sizeof name, "model.layers.%d.%s", l, layer[i].name);
            add(m, unit, name, layer[i].rows, layer[i].columns);
        }
    }
    ckpt_layout_index(&m->layout, NULL);
}

static struct ckpt_pool kept; /* of all header entries */

/* The pieces of a rank and kind as header entries. */
static int list_entries(struct ckpt_st_entry *entries, const struct ckpt_manifest *m,
                        const struct fsdp_cut *cuts, struct fsdp_tensor *const *members, int rank,
                        int kind)
{
    int count = 0;
    for (int u = 0; u < m->nunits; u++) {
        for (int i = 0; i < m->units[u].ntensors; i++) {
            struct fsdp_box box;
            uint64_t pos;
            if (!fsdp_cut_box(&box, &pos, &cuts[u], members[u], i, rank))
                continue;
            for (int k = kind; k < (kind ? 3 : 1); k++) {
                const struct fsdp_tensor *t = &m->layout.tensors[m->units[u].tensors[i] + k].tensor;
                entries[count++] = (struct ckpt_st_entry){
                    .name = t->name,
                    .ndim = (uint8_t)t->ndim,
                    .shape = ckpt_pool_dims(&kept, box.length, t->ndim, NULL),
                    .offset = ckpt_pool_dims(&kept, box.offset, t->ndim, NULL),
                    .global_shape = t->shape};
            }
        }
    }
    return count;
}

static bool write_file(struct ckpt_manifest *m, struct ckpt_st_entry *entries, int nentries,
                       int rank, int kind)
{
    char *header = NULL, *name = ckpt_shard_name(kind, rank, false, NULL), path[700];
    size_t nbytes;
    bool good = !ckpt_st_format(&header, &nbytes, entries, nentries, true, NULL);
    const struct ckpt_st_entry *last = &entries[nentries - 1];
    snprintf(path, sizeof path, "%s/large/%s", root, name);
    good = good && !ckpt_store_put(&ckpt_store_posix, path, header, nbytes, false, NULL) &&
           !truncate(path, (off_t)(last->pos + last->nbytes));
    good = good && !ckpt_layout_add_file(&m->layout, name, last->pos + last->nbytes, NULL);
    m->layout.files[m->layout.nfiles - 1].header_nbytes = nbytes;
    m->layout.files[m->layout.nfiles - 1].has_crc = true;
    fsdp_free(header);
    fsdp_free(name);
    return good;
}

static bool make(void)
{
    static struct ckpt_st_entry entries[4096];
    static struct fsdp_cut cuts[NLAYERS + 1];
    static struct fsdp_tensor *members[NLAYERS + 1];
    struct ckpt_manifest m;
    char path[700], *text = NULL;
    size_t nbytes;
    bool good = true;
    describe(&m);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/large/%s", root, i ? "optim" : "model");
        ckpt_store_mkdirs(&ckpt_store_posix, path, NULL);
    }
    for (int u = 0; u < m.nunits; u++) {
        members[u] = calloc((size_t)m.units[u].ntensors, sizeof *members[u]);
        for (int i = 0; i < m.units[u].ntensors; i++)
            members[u][i] = m.layout.tensors[m.units[u].tensors[i]].tensor;
        good &= !fsdp_cut_create(&cuts[u], members[u], m.units[u].ntensors, NRANKS, NULL);
    }
    for (int rank = 0; good && rank < NRANKS; rank++)
        for (int kind = 0; good && kind < 2; kind++) {
            int count = list_entries(entries, &m, cuts, members, rank, kind);
            good = !count || write_file(&m, entries, count, rank, kind);
        }
    snprintf(path, sizeof path, "%s/large/manifest.json", root);
    good = good && !ckpt_manifest_format(&text, &nbytes, &m, NULL) &&
           !ckpt_store_put(&ckpt_store_posix, path, text, nbytes, false, NULL);
    for (int u = 0; u < m.nunits; u++) {
        fsdp_cut_destroy(&cuts[u]);
        free(members[u]);
    }
    fsdp_free(text);
    ckpt_manifest_free(&m);
    return good;
}

/* A sanitizer's own memory would be counted. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static const bool can_measure = false;
#else
static const bool can_measure = true;
#endif

static int plan(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    struct ckpt_reshard_args args = CKPT_RESHARD_ARGS_INIT;
    struct ckpt_reshard_result result = {.ntensors = 0};
    struct fsdp_err err = FSDP_ERR_INIT;
    struct rusage usage;
    struct ckpt *c = NULL;
    char from[600], to[600];
    (void)oob, (void)nodes;
    snprintf(from, sizeof from, "%s/large", root);
    snprintf(to, sizeof to, "%s/out", root);
    args.output = *(enum ckpt_output *)arg;
    args.shard_size = args.output == CKPT_OUTPUT_WEIGHTS ? 1 : NRANKS / 2;
    args.all = args.output == CKPT_OUTPUT_NATIVE;
    args.mem_nbytes = MEM;
    args.max_shard_nbytes = UINT64_C(5000000000);
    args.dry_run = true;
    args.out = to;
    double begun = fsdp_time_now();
    int rc = ckpt_open(&c, from, &err);
    double opened = fsdp_time_now();
    if (rc == FSDP_OK)
        rc = ckpt_reshard(&result, c, &args, &err);
    getrusage(RUSAGE_SELF, &usage);
    diag("%d tensors into %d files, %.0f GB: opened in %.2f s, planned in %.2f s, peak %ld MiB",
         result.ntensors, result.nfiles, 1e-9 * (double)result.nbytes_written, opened - begun,
         fsdp_time_now() - opened, usage.ru_maxrss >> 10);
    bool good = rc == FSDP_OK && result.nbytes_written > UINT64_C(140000000000);
    if (!good)
        diag("%s", err.text);
    ckpt_close(c);
    return !good || (can_measure && !tap_emulated() && usage.ru_maxrss >> 10 > LIMIT_MIB);
}

int main(void)
{
    static enum ckpt_output weights = CKPT_OUTPUT_WEIGHTS, native = CKPT_OUTPUT_NATIVE;
    snprintf(root, sizeof root, "%s", scratch_create());
    ok(make(), "manifest and headers of 70B x AdamW from %d ranks", NRANKS);
    ok(ranks_run(1, 1, 100, plan, &weights, NULL) == 0, "a merge is planned in %d MiB", LIMIT_MIB);
    ok(ranks_run(1, 1, 100, plan, &native, NULL) == 0, "and a reshard to %d ranks", NRANKS / 2);
    scratch_remove(root);
    return tap_done();
}
