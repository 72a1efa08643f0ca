/* SPDX-License-Identifier: Apache-2.0 */
/* ckpt-diff: compares two checkpoints by tensor. Flags and one call. */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>

#include "tool.h"

/* As diff: 1 is an answer, not a failure. */
enum { SAME = 0, DIFFERENT = 1, TROUBLE = 2 };

static const char usage[] =
    "Usage: ckpt-diff [options] A B\n"
    "\n"
    "Compares two checkpoints tensor by tensor, whatever their formats and numbers of\n"
    "ranks. It does not read tensors whose fingerprints are equal. For each tensor\n"
    "that differs it prints the number of elements, the largest difference, absolute\n"
    "and in units in the last place (ulp), and the index of the first.\n"
    "\n"
    "      --model              compare weights only\n" TOOL_SELECT_HELP
    "      --map MAP            rename, join or split the tensors of both first, as\n"
    "                           ckpt-merge does; --include and --exclude then match\n"
    "                           the new names\n"
    "      --heads QxK          attention heads of queries and of keys, for maps that\n"
    "                           need them (default: from config.json)\n"
    "      --atol X, --rtol X   accept elements with |a - b| <= atol + rtol * |b|\n"
    "      --ulp N              accept elements at most N units in the last place\n"
    "                           apart\n"
    "      --any-dtype          let floating-point types differ; compare in the\n"
    "                           narrower one\n"
    "      --data               also read where fingerprints are equal\n"
    "  -a, --all                print a line for every tensor\n" TOOL_LIMITS_HELP TOOL_HELP "\n"
    "Exit status: 0 the same, 1 different, 2 trouble.\n";

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
        rc = ckpt_open(&ckpts[i], paths[i], &err);
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
    return fflush(stdout) || ferror(stdout) ? TROUBLE : status;
}

static bool parse_real(double *out, const char *text)
{
    char *end;
    errno = 0;
    *out = strtod(text, &end);
    return end != text && !*end && !errno && *out >= 0;
}

int main(int argc, char **argv)
{
    enum { ATOL = TOOL_OWN, RTOL, ULP, MODEL, DATA, ANY };
    static const struct option options[] = {
        TOOL_OPTIONS,
        TOOL_SELECT_OPTIONS,
        {"map", required_argument, NULL, TOOL_MAP},
        {"heads", required_argument, NULL, TOOL_HEADS},
        {"atol", required_argument, NULL, ATOL},
        {"rtol", required_argument, NULL, RTOL},
        {"ulp", required_argument, NULL, ULP},
        {"model", no_argument, NULL, MODEL},
        {"data", no_argument, NULL, DATA},
        {"any-dtype", no_argument, NULL, ANY},
        {"all", no_argument, NULL, 'a'},
        {NULL, 0, NULL, 0},
    };
    struct ckpt_diff_args args = CKPT_DIFF_ARGS_INIT;
    struct tool tool;
    bool all = false, good = true;
    int option, status;
    double ulp = 0;

    tool_begin(&tool, "ckpt-diff", usage);
    while (good && (option = getopt_long(argc, argv, "aqh", options, NULL)) != -1) {
        if (option == ATOL)
            good = parse_real(&args.atol, optarg);
        else if (option == RTOL)
            good = parse_real(&args.rtol, optarg);
        else if (option == ULP)
            good = parse_real(&ulp, optarg) && ulp < 0x1p53;
        else if (option == MODEL)
            args.model = true;
        else if (option == DATA)
            args.data = true;
        else if (option == ANY)
            args.any_dtype = true;
        else if (option == 'a')
            all = true;
        else if (!tool_option(&tool, option, &status))
            return status;
    }
    if (!good)
        return tool_fail(&tool, TOOL_USAGE, "a tolerance is a number that is not negative");
    if (!tool_arguments(&tool, argc, 2, "two checkpoints are", &status))
        return status;
    args.ulp = (uint64_t)ulp;
    args.select = tool.args.select;
    args.mem_nbytes = tool.args.mem_nbytes;
    args.nthreads = tool.args.nthreads;
    return compare_paths(&tool, &args, all, argv + optind);
}
