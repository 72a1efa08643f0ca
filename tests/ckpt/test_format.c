/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A format that this test brings: a text that names tensors with their shapes and sums, then their
 * bytes, inverted. Nothing but the table below knows it, and checkpoints of it are merged,
 * resharded, copied and verified like all others.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../ckpt/source/format_ops.h"
#include "tap.h"

enum { MAX_NBYTES = 1 << 20, MAX_TENSORS = 8, HEADER_NBYTES = 1024 };
static const char magic[] = "toy 1\n";

/* ---- the format ------------------------------------------------------------------------------ */

struct toy {
    uint32_t sums[MAX_TENSORS]; /* of each piece's bytes */
};

static bool is_toy(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot && !strcmp(dot, ".toy");
}

static int toy_recognize(bool *out, struct ckpt *ckpt, const struct ckpt_store_stat *st,
                         struct fsdp_err *err)
{
    *out = !st->is_folder && is_toy(ckpt->path);
    if (*out && !(ckpt->folder = ckpt_path_parent(ckpt->path, err)))
        return FSDP_ENOMEM;
    return FSDP_OK;
}

static int toy_add(struct ckpt *ckpt, const char *line, uint64_t *pos, struct fsdp_err *err)
{
    struct toy *toy = ckpt->format_state;
    struct ckpt_layout *layout = &ckpt->m.layout;
    unsigned long long rows, cols;
    char name[64];
    unsigned sum;

    if (layout->ntensors == MAX_TENSORS ||
        sscanf(line, "%63s %llu %llu %u", name, &rows, &cols, &sum) != 4)
        return fsdp_err_set(err, FSDP_ECORRUPT, "'%s': a line is damaged", ckpt->path);
    const struct fsdp_tensor tensor = {
        .name = name, .dtype = FSDP_F32, .ndim = 2, .shape = {rows, cols}};
    const struct fsdp_box box = ckpt_box_whole(&tensor);
    const struct ckpt_piece piece = {
        .tensor = layout->ntensors, .offset = box.offset, .length = box.length, .pos = *pos};
    toy->sums[layout->ntensors] = sum;
    *pos += rows * cols * sizeof(float);
    FSDP_TRY(ckpt_layout_add_tensor(layout, &tensor, FSDP_SLICE_MODEL, err));
    return ckpt_layout_add_piece(layout, &piece, err);
}

static int toy_open(struct ckpt *ckpt, struct fsdp_err *err)
{
    uint64_t pos = HEADER_NBYTES;
    char *text = NULL;
    size_t nbytes;

    if (!(ckpt->format_state = fsdp_alloc(1, sizeof(struct toy), "toy", err)))
        return FSDP_ENOMEM;
    int rc = ckpt_source_get_head(&text, &nbytes, ckpt, ckpt->path, MAX_NBYTES, err);
    if (rc == FSDP_OK && strncmp(text, magic, sizeof magic - 1))
        rc = fsdp_err_set(err, FSDP_ECORRUPT, "'%s' is no toy", ckpt->path);
    if (rc == FSDP_OK)
        rc = ckpt_layout_add_file(&ckpt->m.layout, ckpt_path_base(ckpt->path), nbytes, err);
    for (char *rest = text ? text + sizeof magic - 1 : NULL, *line;
         rc == FSDP_OK && *rest != '\n' && (line = strsep(&rest, "\n"));)
        rc = toy_add(ckpt, line, &pos, err);
    fsdp_free(text);
    FSDP_TRY(rc);
    FSDP_TRY(ckpt_layout_index(&ckpt->m.layout, err));
    return ckpt_layout_seal(&ckpt->m.layout, err);
}

static void toy_close(struct ckpt *ckpt)
{
    fsdp_free(ckpt->format_state);
}

static void invert(const struct ckpt_extent *x, int loop, unsigned char *p)
{
    for (uint64_t i = 0; loop < x->nloops && i < x->count[loop]; i++)
        invert(x, loop + 1, p + i * x->dst_stride[loop] * sizeof(float));
    for (uint64_t i = 0; loop == x->nloops && i < x->run_nelem * sizeof(float); i++)
        p[i] = (unsigned char)~p[i];
}

static int toy_read_extent(const struct ckpt_scatter *s, const struct ckpt_extent *extent,
                           const struct ckpt_block *block, const struct fsdp_tensor *tensor)
{
    char *dst = s->dst + extent->dst * s->elem_nbytes;

    (void)block;
    (void)tensor;
    FSDP_TRY(ckpt_runs_read(s, extent, extent->pos, dst));
    invert(extent, 0, (unsigned char *)dst);
    return FSDP_OK;
}

static int toy_check_piece(struct ckpt *ckpt, size_t piece, struct fsdp_err *err)
{
    const struct toy *toy = ckpt->format_state;
    const struct ckpt_piece *p = &ckpt->m.layout.pieces[piece];
    const struct fsdp_tensor *t = &ckpt->m.layout.tensors[p->tensor].tensor;
    const size_t nbytes = fsdp_tensor_nelem(t) * sizeof(float);
    unsigned char *data = fsdp_alloc(nbytes, 1, "toy", err);
    uint32_t sum = 0;

    int rc = data ? ckpt_file_pread(ckpt, p->file, data, nbytes, p->pos, err) : FSDP_ENOMEM;
    for (size_t i = 0; rc == FSDP_OK && i < nbytes; i++)
        sum += (unsigned char)~data[i];
    fsdp_free(data);
    FSDP_TRY(rc);
    return sum == toy->sums[p->tensor]
               ? FSDP_OK
               : fsdp_err_set(err, FSDP_ECORRUPT, "tensor '%s': its sum is wrong", t->name);
}

static const struct ckpt_format_ops toy_ops = {
    .id = CKPT_HF, /* as a person sees it: a file of weights */
    .identity = CKPT_IDENTITY_MTIME,
    .recognize = toy_recognize,
    .open = toy_open,
    .close = toy_close,
    .read_extent = toy_read_extent,
    .check_piece = toy_check_piece,
};

/* ---- what a tool does with it ---------------------------------------------------------------- */

static const struct {
    const char *name;
    int rows, cols;
} tensors[] = {{"a.weight", 7, 5}, {"b.weight", 3, 11}, {"norm.weight", 1, 4}};
enum { NTENSORS = sizeof tensors / sizeof tensors[0] };

static float value_of(int tensor, int i)
{
    return (float)(tensor * 1000 + i) / 8;
}

/* damage: a byte of tensor 1 is another. */
static void write_toy(const char *path, bool damage)
{
    static char file[MAX_NBYTES];
    size_t pos = HEADER_NBYTES;
    int len = snprintf(file, sizeof file, "%s", magic);

    memset(file + len, '\n', HEADER_NBYTES - (size_t)len);
    for (int t = 0; t < NTENSORS; t++) {
        uint32_t sum = 0;
        for (int i = 0; i < tensors[t].rows * tensors[t].cols; i++) {
            const float value = value_of(t, i);
            unsigned char bytes[sizeof value];
            memcpy(bytes, &value, sizeof value);
            for (size_t k = 0; k < sizeof value; k++, pos++) {
                sum += bytes[k];
                file[pos] = (char)~bytes[k];
            }
        }
        len += sprintf(file + len, "%s %d %d %u\n", tensors[t].name, tensors[t].rows,
                       tensors[t].cols, sum);
        if (damage && t == 1)
            file[pos - 3] ^= 4;
    }
    file[len] = '\n';
    FILE *to = fopen(path, "wb");
    fwrite(file, 1, pos, to);
    fclose(to);
}

static struct ckpt *open_at(const char *path, const char *what)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct ckpt *ckpt = NULL;
    int rc = ckpt_open(&ckpt, path, &err);

    ok(rc == FSDP_OK && ckpt_ntensors(ckpt) == NTENSORS, "%s opens, with all tensors: %s", what,
       err.text);
    return ckpt;
}

struct compared {
    float *data;
};

static int put(void *ctx, uint64_t pos, const void *src, size_t nbytes, struct fsdp_err *err)
{
    struct compared *c = ctx;
    (void)err;
    memcpy((char *)c->data + pos, src, nbytes);
    return FSDP_OK;
}

/* Are all values what was written? Reads rows from the second on alone, so that extents are parts
 * of pieces. */
static void compare(struct ckpt *ckpt, const char *what)
{
    int bad = 0;

    for (int t = 0; t < NTENSORS; t++) {
        const struct ckpt_tensor *have = ckpt_tensor_find(ckpt, tensors[t].name);
        float data[64];
        struct compared c = {data};
        const struct fsdp_slice_io io = {.ctx = &c, .write = put};
        const int first = tensors[t].rows > 1;
        struct fsdp_slice slice = {.tensor = have->tensor,
                                   .box = {.offset = {(uint64_t)first, 1},
                                           .length = {(uint64_t)(tensors[t].rows - first),
                                                      (uint64_t)tensors[t].cols - 2}}};
        struct fsdp_err err = FSDP_ERR_INIT;
        if (ckpt_read_slice(ckpt, &slice, &io, &err)) {
            diag("%s", err.text);
            bad++;
            continue;
        }
        int at = 0;
        for (int r = first; r < tensors[t].rows; r++)
            for (int k = 1; k < tensors[t].cols - 1; k++)
                bad += data[at++] != value_of(t, r * tensors[t].cols + k);
    }
    ok(bad == 0, "%s: %d values are wrong", what, bad);
}

static int verify(const char *path, struct fsdp_err *err)
{
    struct ckpt *ckpt = open_at(path, path);
    int rc = ckpt_verify(ckpt, NULL, NULL, err);
    ckpt_close(ckpt);
    return rc;
}

static void test_written(const char *from, const char *to, enum ckpt_output output, int nranks)
{
    struct ckpt_reshard_args args = CKPT_RESHARD_ARGS_INIT;
    struct fsdp_err err = FSDP_ERR_INIT;
    struct ckpt *ckpt = open_at(from, "the toy");

    args.out = to;
    args.output = output;
    args.shard_size = nranks;
    ok(ckpt_reshard(NULL, ckpt, &args, &err) == FSDP_OK, "becomes %s: %s", to, err.text);
    ckpt_close(ckpt);
    ckpt = open_at(to, to);
    compare(ckpt, to);
    ckpt_close(ckpt);
    ok(verify(to, &err) == FSDP_OK, "%s is sound: %s", to, err.text);
}

int main(void)
{
    struct ckpt_copy_args copy = CKPT_COPY_ARGS_INIT;
    struct fsdp_err err = FSDP_ERR_INIT;
    char dir[] = "/tmp/test_format_XXXXXX";

    if (!mkdtemp(dir) || chdir(dir))
        return 1;
    write_toy("x.toy", false);
    write_toy("bad.toy", true);
    ok(ckpt_format_add(&toy_ops, &err) == FSDP_OK, "the format is added");
    struct ckpt *ckpt = open_at("x.toy", "the toy");
    compare(ckpt, "the toy");
    copy.out = "copy.toy";
    ok(ckpt_copy(NULL, ckpt, &copy, &err) == FSDP_OK, "it is copied: %s", err.text);
    ckpt_close(ckpt);
    ok(verify("x.toy", &err) == FSDP_OK && verify("copy.toy", &err) == FSDP_OK,
       "both are sound: %s", err.text);
    ok(verify("bad.toy", &err) == FSDP_ECORRUPT, "a damaged one is not: %s", err.text);
    test_written("x.toy", "merged.safetensors", CKPT_OUTPUT_WEIGHTS, 1);
    test_written("x.toy", "native", CKPT_OUTPUT_NATIVE, 3);
    test_written("x.toy", "torch", CKPT_OUTPUT_DCP, 2);
    test_written("x.toy", "hf-torch", CKPT_OUTPUT_HF_DCP, 2);
    int added = 1;
    while (ckpt_format_add(&toy_ops, &err) == FSDP_OK)
        added++;
    ok(added == CKPT_MAX_FORMATS_ADDED, "%d formats can be added: %s", added, err.text);
    ok(chdir("/") == 0, "cleaned up");
    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", dir);
    return system(command) ? 1 : tap_done();
}
