/* SPDX-License-Identifier: Apache-2.0 */
/* ckpt-info: what is in a checkpoint, as a table or as JSON. Reads headers only. And what lies
 * next to checkpoints and is none: remains of saves and tools. */
#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tool.h"

struct settings {
    struct tool tool; /* first */
    bool all, gc, whole_bucket;
    int64_t older_s; /* -1: not given */
};

static int take_age(void *to, const char *text, struct fsdp_err *err);

#define AT(field) offsetof(struct settings, field)
static const struct fsdp_cli_option info_rows[] = {
    {"all", 'a', .offset = AT(all), .help = "also show the optimizer's tensors and the files"},
    TOOL_CONFIG_ROW,
    {.help = NULL}};
static const struct fsdp_cli_option gc_rows[] = {
    {"gc", .offset = AT(gc), .help = "remove leftovers"},
    {"dry-run", .offset = AT(tool.args.dry_run), .help = "list leftovers, remove nothing"},
    {"older", .arg = "AGE", .kind = FSDP_CLI_OWN, .offset = AT(older_s), .parse = take_age,
     .help = "only leftovers untouched for 90s, 30m, 2h or 7d (default: 1h; uploads: 1d). An age "
             "below the time that a save takes endangers a running one."},
    {"whole-bucket", .offset = AT(whole_bucket),
     .help = "let --gc end all old uploads of a bucket, also those of other programs, if its "
             "address has no prefix"},
    {.help = NULL}};
static const struct fsdp_cli_group groups[] = {
    {"Contents", info_rows}, {"Leftovers", gc_rows}, TOOL_REPORT, {NULL, NULL}};
static const struct fsdp_cli_program program = {
    .name = "ckpt-info",
    .usage = "[options] CHECKPOINT\n--gc [--dry-run] [--older AGE] [--whole-bucket] FOLDER",
    .purpose =
        "Shows what a checkpoint holds. It reads headers and finds missing and truncated "
        "files, and shards of another save; ckpt-verify also reads the data.\n"
        "\n" TOOL_CHECKPOINT_HELP "\n"
        "\nWith --gc, it removes what saves, removals and tools left unfinished in FOLDER or "
        "below an address: *.tmp.*, *.del.*, files in a store that no manifest names, and "
        "unfinished uploads. Published checkpoints stay, and so does a leftover that holds any "
        "other file. No link is followed.",
    .groups = groups,
    .examples = "ckpt-info checkpoints\n"
                "ckpt-info --json checkpoints/step-00001000\n"
                "ckpt-info --gc --dry-run checkpoints",
    .exits = tool_exits,
    .least = 1,
    .most = 1,
    .operands = "exactly one checkpoint: ckpt-info CHECKPOINT",
};

static uint64_t nbytes_of(const struct fsdp_tensor *tensor)
{
    return fsdp_tensor_nelem(tensor) * fsdp_dtype_nbytes(tensor->dtype);
}

static const char *kind_name(enum fsdp_slice_kind kind)
{
    return kind == FSDP_SLICE_MODEL ? "model" : "optim";
}

/* ---- table ----------------------------------------------------------------------------------- */

static void print_head(const struct ckpt *ckpt)
{
    uint64_t nbytes[2] = {0, 0}, nelem = 0;
    int ntensors[2] = {0, 0}, shard, replicate;
    for (int i = 0; i < ckpt_ntensors(ckpt); i++) {
        const struct ckpt_tensor *t = ckpt_tensor_at(ckpt, i);
        nbytes[t->kind] += nbytes_of(&t->tensor);
        ntensors[t->kind]++;
        nelem += t->kind == FSDP_SLICE_MODEL ? fsdp_tensor_nelem(&t->tensor) : 0;
    }
    printf("%-12s %s\n%-12s %s\n", "checkpoint", tool_shown(ckpt_path(ckpt)), "format",
           ckpt_format_name(ckpt_format(ckpt)));
    if (ckpt_step(ckpt) >= 0)
        printf("%-12s %" PRId64 "\n", "step", ckpt_step(ckpt));
    if (ckpt_format(ckpt) == CKPT_NATIVE) {
        ckpt_mesh(ckpt, &shard, &replicate);
        printf("%-12s %d x %d (replicate x shard)\n", "mesh", replicate, shard);
    }
    printf("%-12s %d tensor%s, %" PRIu64 " parameters, %s\n", "model", ntensors[0],
           ntensors[0] == 1 ? "" : "s", nelem, tool_nbytes(nbytes[0]));
    if (ntensors[1])
        printf("%-12s %d tensor%s, %s\n", "optimizer", ntensors[1], ntensors[1] == 1 ? "" : "s",
               tool_nbytes(nbytes[1]));
    printf("%-12s %d\n", "files", ckpt_nfiles(ckpt));
    for (int i = 0; i < ckpt_naliases(ckpt); i++) {
        printf("%-12s %s", i ? "" : "tied", tool_shown(ckpt_alias_at(ckpt, i).name));
        printf(" = %s\n", tool_shown(ckpt_alias_at(ckpt, i).target));
    }
    for (int i = 0; i < ckpt_nextra(ckpt); i++)
        printf("%-12s %s\n", i ? "" : "kept", tool_shown(ckpt_extra_at(ckpt, i)));
}

/* The decimal digits and a 0 byte; where they end. */
static char *u64_text(char *out, uint64_t value)
{
    char digits[20];
    int ndigits = 0;
    do {
        digits[ndigits++] = (char)('0' + value % 10);
    } while (value /= 10);
    while (ndigits)
        *out++ = digits[--ndigits];
    *out = 0;
    return out;
}

static void shape_text(char *out, const struct fsdp_tensor *tensor)
{
    *out++ = '[';
    for (int d = 0; d < tensor->ndim; d++) {
        out = u64_text(out, tensor->shape[d]);
        if (d < tensor->ndim - 1) {
            *out++ = ',';
            *out++ = ' ';
        }
    }
    *out++ = ']';
    *out = 0;
}

/* As "%*s" has it. */
static void put_column(const char *text, int width)
{
    int len = (int)strlen(text);
    for (int i = len; i < width; i++)
        putchar_unlocked(' ');
    fwrite(text, 1, (size_t)len, stdout);
    for (int i = len; i < -width; i++)
        putchar_unlocked(' ');
}

/* printf alone would take a third of all the time of a checkpoint of many tensors. */
static void print_tensor(const struct ckpt_tensor *t, int width)
{
    char shape[FSDP_MAX_DIMS * 22 + 3], nbytes[21], fingerprint[17] = "-";
    shape_text(shape, &t->tensor);
    u64_text(nbytes, nbytes_of(&t->tensor));
    for (int i = 0; t->has_fingerprint && i < 16; i++)
        fingerprint[i] = "0123456789abcdef"[t->fingerprint >> (60 - 4 * i) & 15];
    put_column(tool_shown(t->tensor.name), -width);
    put_column("  ", 0);
    put_column(fsdp_dtype_name(t->tensor.dtype), -8);
    put_column(" ", 0);
    put_column(shape, -20);
    put_column(nbytes, 15);
    put_column("  ", 0);
    put_column(fingerprint, 0);
    putchar_unlocked('\n');
}

static void print_tensors(const struct ckpt *ckpt, bool all)
{
    int width = 6;
    for (int i = 0; i < ckpt_ntensors(ckpt); i++) {
        const struct ckpt_tensor *t = ckpt_tensor_at(ckpt, i);
        int len = (int)strlen(t->tensor.name);
        if (all || t->kind == FSDP_SLICE_MODEL)
            width = len > width ? len : width;
    }
    printf("\n%-*s  %-8s %-20s %14s  %s\n", width, "tensor", "dtype", "shape", "bytes",
           "fingerprint");
    for (int i = 0; i < ckpt_ntensors(ckpt); i++) {
        const struct ckpt_tensor *t = ckpt_tensor_at(ckpt, i);
        if (all || t->kind == FSDP_SLICE_MODEL)
            print_tensor(t, width);
    }
}

static void print_files(const struct ckpt *ckpt)
{
    printf("\n%14s  %-8s  %s\n", "bytes", "crc32c", "file");
    for (int i = 0; i < ckpt_nfiles(ckpt); i++) {
        struct ckpt_file_info file = ckpt_file_at(ckpt, i);
        char crc[9] = "-";
        if (file.has_crc)
            snprintf(crc, sizeof crc, "%08x", file.crc32c);
        printf("%14" PRIu64 "  %-8s  %s\n", file.nbytes, crc, tool_shown(file.path));
    }
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static json_t *tensor_json(const struct ckpt_tensor *t)
{
    json_t *shape = json_array(), *out;
    for (int d = 0; d < t->tensor.ndim; d++)
        json_array_append_new(shape, json_integer((json_int_t)t->tensor.shape[d]));
    out = json_pack("{s:s, s:s, s:o, s:I}", "kind", kind_name(t->kind), "dtype",
                    fsdp_dtype_name(t->tensor.dtype), "shape", shape, "nbytes",
                    (json_int_t)nbytes_of(&t->tensor));
    if (t->has_fingerprint) {
        char text[17];
        snprintf(text, sizeof text, "%016" PRIx64, t->fingerprint);
        json_object_set_new(out, "fingerprint", json_string(text));
    }
    return out;
}

static json_t *file_json(const struct ckpt_file_info *file)
{
    json_t *out = json_pack("{s:o, s:I}", "path", tool_json_text(file->path), "nbytes",
                            (json_int_t)file->nbytes);
    if (file->has_crc) {
        char text[9];
        snprintf(text, sizeof text, "%08x", file->crc32c);
        json_object_set_new(out, "crc32c", json_string(text));
    }
    return out;
}

/* A float of JSON with as few digits as read back equal. */
static void print_float(const char *token, int len)
{
    char text[40];
    double value = strtod(token, NULL);
    int precision = 15;
    do {
        snprintf(text, sizeof text, "%.*g", precision, value);
    } while (strtod(text, NULL) != value && ++precision <= 17);
    if (!strpbrk(text, ".en")) /* it stays a float */
        strcat(text, ".0");
    bool is_shorter = isfinite(value) && (int)strlen(text) < len;
    printf("%.*s", len, is_shorter ? text : token);
}

/* JSON as it is, but for floats, which writers spell with up to 17 digits. */
static void print_shortest(const char *json)
{
    bool quoted = false;
    for (const char *p = json; *p;) {
        size_t len = quoted ? 0 : strspn(p, "-+.0123456789eE");
        if (len && (isdigit((unsigned char)*p) || *p == '-')) {
            if (strcspn(p, ".eE") < len)
                print_float(p, (int)len);
            else
                printf("%.*s", (int)len, p);
            p += len;
            continue;
        }
        if (quoted && *p == '\\' && p[1])
            putchar(*p++);
        else if (*p == '"')
            quoted = !quoted;
        putchar(*p++);
    }
}

static void print_json(const struct ckpt *ckpt)
{
    int shard, replicate;
    json_t *tensors = json_object(), *files = json_array(), *aliases = json_object();
    json_t *extras = json_array();

    ckpt_mesh(ckpt, &shard, &replicate);
    for (int i = 0; i < ckpt_ntensors(ckpt); i++)
        tool_json_set(tensors, ckpt_tensor_at(ckpt, i)->tensor.name,
                      tensor_json(ckpt_tensor_at(ckpt, i)));
    for (int i = 0; i < ckpt_nfiles(ckpt); i++) {
        struct ckpt_file_info file = ckpt_file_at(ckpt, i);
        json_array_append_new(files, file_json(&file));
    }
    for (int i = 0; i < ckpt_naliases(ckpt); i++)
        tool_json_set(aliases, ckpt_alias_at(ckpt, i).name,
                      tool_json_text(ckpt_alias_at(ckpt, i).target));
    for (int i = 0; i < ckpt_nextra(ckpt); i++)
        json_array_append_new(extras, tool_json_text(ckpt_extra_at(ckpt, i)));
    json_t *root = json_pack(
        "{s:o, s:s, s:I, s:{s:i, s:i}, s:o, s:o, s:o, s:o}", "path",
        tool_json_text(ckpt_path(ckpt)), "format", ckpt_format_name(ckpt_format(ckpt)), "step",
        (json_int_t)ckpt_step(ckpt), "mesh", "shard_size", shard, "replicate_size", replicate,
        "files", files, "extras", extras, "aliases", aliases, "tensors", tensors);
    char *text = json_dumps(root, TOOL_JSON_FLAGS);
    /* The state as it was saved: integers of any length, floats to the last bit. */
    if (text && ckpt_state_json(ckpt)) {
        printf("%.*s,\n \"state\": ", (int)strlen(text) - 2, text);
        print_shortest(ckpt_state_json(ckpt));
        puts("\n}");
    } else if (text) {
        puts(text);
    }
    free(text);
    json_decref(root);
}

/* ---- remains --------------------------------------------------------------------------------- */

struct gc {
    const struct tool *tool;
    bool dry_run;
    json_t *items; /* NULL: lines */
    char *first;   /* why the first that stays does; NULL: none does */
};

/* "90 s", "3 h" in static memory. */
static const char *age_text(int64_t seconds)
{
    static const struct {
        int64_t seconds;
        const char *unit;
    } units[] = {{86400, "d"}, {3600, "h"}, {60, "min"}, {1, "s"}};
    static char text[32];
    int i = 0;
    while (i < 3 && seconds < 2 * units[i].seconds)
        i++;
    snprintf(text, sizeof text, "%" PRId64 " %s", seconds / units[i].seconds, units[i].unit);
    return text;
}

static void gc_item(void *ctx, const struct ckpt_gc_item *item)
{
    struct gc *gc = ctx;
    if (item->stays)
        gc->first = gc->first ? gc->first : strdup(item->stays);
    if (gc->items)
        json_array_append_new(gc->items,
                              json_pack("{s:o, s:s, s:I, s:I, s:b, s:o?}", "path",
                                        tool_json_text(item->path), "what", item->what, "nbytes",
                                        (json_int_t)item->nbytes, "age_s", (json_int_t)item->age_s,
                                        "removed", item->is_old && !item->stays && !gc->dry_run,
                                        "stays", item->stays ? tool_json_text(item->stays) : NULL));
    else if (!gc->tool->quiet)
        printf("%-12s %s  %s, untouched for %s: it %s%s\n",
               !item->is_old || item->stays ? "stays"
               : gc->dry_run                ? "would go"
                                            : "removed",
               tool_shown(item->path), tool_nbytes(item->nbytes), age_text(item->age_s), item->what,
               item->stays    ? ", and holds what does not belong to a checkpoint"
               : item->is_old ? ""
                              : ", or is being written");
}

/* "90s", "30m", "2h", "7d", or seconds. */
static int take_age(void *to, const char *text, struct fsdp_err *err)
{
    char *end;
    long long value = strtoll(text, &end, 10);
    int64_t unit = *end == 'd' ? 86400 : *end == 'h' ? 3600 : *end == 'm' ? 60 : 1;
    if (end == text || value < 0 || value > 1000000 || (*end && (!strchr("smhd", *end) || end[1])))
        return fsdp_err_set(err, FSDP_EINVAL, "'%s' is not of the form 90s, 30m, 2h or 7d", text);
    *(int64_t *)to = value * unit;
    return FSDP_OK;
}

static int gc_run(const struct tool *tool, const char *root, int64_t older_s, bool whole_bucket)
{
    struct gc gc = {.tool = tool, .dry_run = tool->args.dry_run};
    struct ckpt_gc_args args = CKPT_GC_ARGS_INIT;
    struct ckpt_gc_result r;
    struct fsdp_err err = FSDP_ERR_INIT;
    int status = TOOL_DONE;

    gc.items = tool->json ? json_array() : NULL;
    args.older_s = older_s;
    args.whole_bucket = whole_bucket;
    args.dry_run = gc.dry_run;
    args.report = gc_item;
    args.report_ctx = &gc;
    if (ckpt_gc(&r, root, &args, &err)) {
        json_decref(gc.items);
        free(gc.first);
        return tool_fail(tool, TOOL_FAILED, err.text);
    }
    if (tool->json) {
        json_t *out = json_pack("{s:o, s:b, s:o, s:I}", "path", tool_json_text(root), "dry_run",
                                gc.dry_run, "remains", gc.items, "uploads", (json_int_t)r.nuploads);
        status = tool_json_print(tool, out, TOOL_DONE);
    } else if (!tool->quiet)
        printf("%s: %" PRIu64 " remains %s, %s; %" PRIu64 " unfinished upload%s %s; %" PRIu64
               " younger remains stay\n",
               tool_shown(root), r.nold, gc.dry_run ? "would go" : "removed", tool_nbytes(r.nbytes),
               r.nuploads, r.nuploads == 1 ? "" : "s", gc.dry_run ? "would be ended" : "ended",
               r.nyoung);
    status = tool_flush(tool, status);
    if (gc.first && status == TOOL_DONE)
        status = tool_fail(tool, TOOL_FAILED, gc.first);
    free(gc.first);
    return status;
}

int main(int argc, char **argv)
{
    struct settings set = {.older_s = -1};
    struct tool *tool = &set.tool;
    struct fsdp_err err = FSDP_ERR_INIT;
    struct ckpt *ckpt = NULL;

    tool_begin(tool, &program);
    int status = tool_parse(tool, argc, argv);
    if (status >= 0)
        return status;
    if (!set.gc && (set.older_s >= 0 || tool->args.dry_run || set.whole_bucket))
        return tool_fail(tool, TOOL_USAGE, "--older, --dry-run and --whole-bucket belong to --gc");
    if (set.gc)
        return gc_run(tool, tool->operands[0], set.older_s, set.whole_bucket);
    if (ckpt_open_with(&ckpt, tool->operands[0], tool->config, &err))
        return tool_fail(tool, TOOL_FAILED, err.text);
    ckpt_warn_unread(ckpt);
    if (tool->json) {
        print_json(ckpt);
    } else if (!tool->quiet) {
        print_head(ckpt);
        print_tensors(ckpt, set.all);
        if (set.all)
            print_files(ckpt);
    }
    ckpt_close(ckpt);
    return tool_flush(tool, TOOL_DONE);
}
