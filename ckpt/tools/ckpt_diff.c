/* SPDX-License-Identifier: Apache-2.0 */
/* ckpt-diff: compares two checkpoints by tensor. Options and one call. */
#include <float.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>

#include "tool.h"

/* As diff: 1 is an answer, not a failure. */
enum { SAME = 0, DIFFERENT = 1, TROUBLE = 2 };

struct settings {
    struct tool tool; /* first */
    struct ckpt_diff_args args;
    double ulp;
    bool all;
};

#define AT(field) offsetof(struct settings, field)
static const struct fsdp_cli_option compare_rows[] = {
    {"model", .offset = AT(args.model), .help = "compare weights only"},
    {"atol", .arg = "X", .kind = FSDP_CLI_NUMBER, .offset = AT(args.atol), .most = DBL_MAX,
     .help = "accept elements with |a - b| <= X + rtol * |b|"},
    {"rtol", .arg = "X", .kind = FSDP_CLI_NUMBER, .offset = AT(args.rtol), .most = DBL_MAX,
     .help = "accept elements with |a - b| <= atol + X * |b|"},
    {"ulp", .arg = "N", .kind = FSDP_CLI_NUMBER, .offset = AT(ulp), .most = 0x1p53,
     .help = "accept elements at most N units in the last place apart"},
    {"any-dtype", .offset = AT(args.any_dtype),
     .help = "let floating-point types differ; compare in the narrower one"},
    {"data", .offset = AT(args.data), .help = "also read where fingerprints are equal"},
    {"map", .arg = "MAP", .kind = FSDP_CLI_OWN, .parse = tool_take_map, .words = tool_maps,
     .is_file = true,
     .help = "rename, join or split the tensors of both first, as ckpt-merge does; --include and "
             "--exclude then match the new names"},
    TOOL_HEADS_ROW,
    {"all", 'a', .offset = AT(all), .help = "print a line for every tensor"},
    {.help = NULL}};
static const struct fsdp_cli_group groups[] = {
    {"Comparison", compare_rows}, TOOL_SELECTION, TOOL_RESOURCES, TOOL_REPORT, {NULL, NULL}};
static const struct fsdp_cli_note exits[] = {{"0", "equal, within the tolerances"},
                                             {"1", "different"},
                                             {"2", "wrong usage, or a checkpoint cannot be read"},
                                             {NULL, NULL}};
static const struct fsdp_cli_program program = {
    .name = "ckpt-diff",
    .usage = "[options] A B",
    .purpose =
        "Compares two checkpoints tensor by tensor, whatever their formats and numbers of ranks. "
        "It does not read tensors whose fingerprints are equal. For each tensor that differs it "
        "prints the number of elements, the largest difference, absolute and in units in the "
        "last place (ulp), and the index of the first.\n"
        "\nA and B are step-* folders, folders of such folders (the newest is taken), "
        "torch.distributed.checkpoints, folders of DeepSpeed or Hugging Face, .safetensors files, "
        "or "
        "files of torch.save.",
    .groups = groups,
    .notes = TOOL_SIZE_HELP,
    .examples = "ckpt-diff run1/step-00000100 run2/step-00000100\n"
                "ckpt-diff --model --any-dtype checkpoints merged\n"
                "ckpt-diff --rtol 1e-5 --atol 1e-8 a.safetensors b.safetensors",
    .exits = exits,
    .least = 2,
    .most = 2,
    .operands = "exactly two checkpoints: ckpt-diff A B",
};

struct output {
    bool all, quiet;
    json_t *json; /* NULL: lines */
    uint64_t nsame, nnear, ndifferent;
};

static const char *result_name(enum ckpt_diff_result result)
{
    static const char *const names[] = {
        [CKPT_DIFF_SAME] = "same",     [CKPT_DIFF_SAME_FINGERPRINT] = "same (fingerprint)",
        [CKPT_DIFF_NEAR] = "near",     [CKPT_DIFF_DATA] = "differs",
        [CKPT_DIFF_DTYPE] = "dtype",   [CKPT_DIFF_SHAPE] = "shape",
        [CKPT_DIFF_ONLY_A] = "only A", [CKPT_DIFF_ONLY_B] = "only B"};
    return names[result];
}

static void shape_text(char *out, size_t out_nbytes, const uint64_t *dims, int ndim)
{
    size_t len = (size_t)snprintf(out, out_nbytes, "[");
    for (int d = 0; d < ndim && len < out_nbytes; d++)
        len += (size_t)snprintf(out + len, out_nbytes - len, "%s%" PRIu64, d ? ", " : "", dims[d]);
    if (len < out_nbytes)
        snprintf(out + len, out_nbytes - len, "]");
}

/* The row-major index `first` as one index per dimension. */
static void first_text(char *out, size_t out_nbytes, const struct ckpt_diff_tensor *t)
{
    const struct fsdp_tensor *tensor = &t->a->tensor;
    uint64_t index[FSDP_MAX_DIMS], left = t->first;
    for (int d = tensor->ndim - 1; d >= 0; d--) {
        index[d] = left % tensor->shape[d];
        left /= tensor->shape[d];
    }
    shape_text(out, out_nbytes, index, tensor->ndim);
}

static void print_line(const struct ckpt_diff_tensor *t)
{
    char one[256], other[256];
    printf("%-8s %s", result_name(t->result), tool_shown(t->name));
    if (t->result == CKPT_DIFF_DTYPE) {
        printf(": %s and %s", fsdp_dtype_name(t->a->tensor.dtype),
               fsdp_dtype_name(t->b->tensor.dtype));
    } else if (t->result == CKPT_DIFF_SHAPE) {
        shape_text(one, sizeof one, t->a->tensor.shape, t->a->tensor.ndim);
        shape_text(other, sizeof other, t->b->tensor.shape, t->b->tensor.ndim);
        printf(": %s and %s", one, other);
    } else if (t->result == CKPT_DIFF_DATA || t->result == CKPT_DIFF_NEAR) {
        printf(": %" PRIu64 " of %" PRIu64 " element%s, at most %g", t->ndiffer + t->nnear,
               fsdp_tensor_nelem(&t->a->tensor), fsdp_tensor_nelem(&t->a->tensor) == 1 ? "" : "s",
               t->max_abs);
        if (fsdp_dtype_is_float(t->a->tensor.dtype))
            printf(" (%" PRIu64 " ulp)", t->max_ulp);
        if (t->ndiffer) {
            first_text(one, sizeof one, t);
            printf(", first at %s", one);
        }
    }
    putchar('\n');
}

static json_t *tensor_json(const struct ckpt_diff_tensor *t)
{
    json_t *out = json_pack("{s:s}", "result", result_name(t->result));
    if (t->result != CKPT_DIFF_DATA && t->result != CKPT_DIFF_NEAR)
        return out;
    json_object_set_new(out, "differing", json_integer((json_int_t)t->ndiffer));
    json_object_set_new(out, "near", json_integer((json_int_t)t->nnear));
    json_object_set_new(out, "max_abs",
                        isfinite(t->max_abs) ? json_real(t->max_abs) : json_string("inf"));
    json_object_set_new(out, "max_ulp", json_integer((json_int_t)t->max_ulp));
    if (t->ndiffer)
        json_object_set_new(out, "first", json_integer((json_int_t)t->first));
    return out;
}

static void report_tensor(void *ctx, const struct ckpt_diff_tensor *t)
{
    struct output *out = ctx;
    bool same = t->result <= CKPT_DIFF_NEAR;
    out->nsame += same && t->result != CKPT_DIFF_NEAR;
    out->nnear += t->result == CKPT_DIFF_NEAR;
    out->ndifferent += !same;
    if (out->json)
        tool_json_set(out->json, t->name, tensor_json(t));
    else if (!out->quiet && (out->all || !same || t->result == CKPT_DIFF_NEAR))
        print_line(t);
}

static int compare_paths(const struct tool *tool, const struct ckpt_diff_args *args, bool all,
                         char *const *paths)
{
    struct output out = {.all = all, .quiet = tool->quiet};
    struct ckpt *ckpts[2] = {NULL, NULL};
    struct fsdp_err err = FSDP_ERR_INIT;
    bool same = false;
    int rc = FSDP_OK;

    if (tool->json)
        out.json = json_object();
    for (int i = 0; rc == FSDP_OK && i < 2; i++)
        rc = ckpt_open_with(&ckpts[i], paths[i], tool->config, &err);
    if (rc == FSDP_OK)
        rc = ckpt_diff(&same, ckpts[0], ckpts[1], args, report_tensor, &out, &err);
    int status = rc ? TROUBLE : same ? SAME : DIFFERENT;
    if (rc)
        fprintf(stderr, "%s: %s\n", tool->name, err.text);
    if (rc == FSDP_OK && out.json) {
        if (tool_json_print(tool, json_pack("{s:b, s:O}", "same", same, "tensors", out.json), 0))
            status = TROUBLE;
    } else if (rc == FSDP_OK && !tool->quiet) {
        printf("%" PRIu64 " tensor%s the same, %" PRIu64 " near, %" PRIu64 " different\n",
               out.nsame, out.nsame == 1 ? " is" : "s are", out.nnear, out.ndifferent);
    }
    json_decref(out.json);
    ckpt_close(ckpts[0]);
    ckpt_close(ckpts[1]);
    return tool_flush(tool, SAME) == SAME ? status : TROUBLE;
}

int main(int argc, char **argv)
{
    struct settings set = {.args = CKPT_DIFF_ARGS_INIT};
    struct tool *tool = &set.tool;

    tool_begin(tool, &program);
    int status = tool_parse(tool, argc, argv);
    if (status >= 0)
        return status == TOOL_FAILED ? TROUBLE : status;
    set.args.ulp = (uint64_t)set.ulp;
    set.args.select = tool->args.select;
    set.args.mem_nbytes = tool->args.mem_nbytes;
    set.args.nthreads = tool->args.nthreads;
    return compare_paths(tool, &set.args, set.all, tool->operands);
}
