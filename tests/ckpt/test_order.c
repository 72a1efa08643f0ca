/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening with 200,000 tensors, chunks or names in an order that would make a search from the
 * beginning quadratic. Quadratic is minutes, so that the limit tells it from n log n.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "../../ckpt/util/text.h"
#include "ckpt/ckpt.h"
#include "tap.h"

enum { NTENSORS = 200000, DEADLINE_S = 90 };

#define META "torch.distributed.checkpoint.metadata"

static char root[1000];

/* A .metadata of pickle protocol 2, written by hand: one file `f` holds all chunks. */
static void put_text(FILE *to, const char *text)
{
    uint32_t nbytes = (uint32_t)strlen(text);
    fputc('X', to);
    fwrite(&nbytes, 4, 1, to);
    fputs(text, to);
}

static void put_int(FILE *to, int value)
{
    fputc('J', to);
    fwrite(&value, 4, 1, to);
}

static void put_size(FILE *to, int value)
{
    fputs("ctorch\nSize\n(", to);
    put_int(to, value);
    fputs("t\x85R", to);
}

static void put_name(FILE *to, int i)
{
    char name[64];
    snprintf(name, sizeof name, "model.stage%d.%d.weight", i % 4, i / 4);
    put_text(to, name);
}

static void put_chunk(FILE *to)
{
    fputs("c" META "\nChunkStorageMetadata\n)\x81}(", to);
    put_text(to, "offsets");
    put_size(to, 0);
    put_text(to, "sizes");
    put_size(to, 4);
    fputs("ub", to);
}

static void put_tensor(FILE *to, int nchunks)
{
    fputs("c" META "\nTensorStorageMetadata\n)\x81}(", to);
    put_text(to, "properties");
    fputs("c" META "\nTensorProperties\n)\x81(ctorch\nfloat32\n\x89K", to);
    fputc(0, to);
    fputs("\x89tb", to);
    put_text(to, "size");
    put_size(to, 4);
    put_text(to, "chunks");
    fputs("](", to);
    put_chunk(to);
    fputs("q\x03", to);
    for (int i = 1; i < nchunks; i++)
        fputs("h\x03", to);
    fputs("eub", to);
}

static void put_place(FILE *to, int name)
{
    fputs("c" META "\nMetadataIndex\n)\x81}(", to);
    put_text(to, "fqn");
    put_name(to, name);
    put_text(to, "offset");
    put_size(to, 0);
    put_text(to, "index");
    fputs("Nub", to);
}

static void put_info(FILE *to)
{
    fputs("ctorch.distributed.checkpoint.filesystem\n_StorageInfo\n)\x81}(", to);
    put_text(to, "relative_path");
    put_text(to, "f");
    put_text(to, "offset");
    put_int(to, 0);
    put_text(to, "length");
    put_int(to, 16);
    fputs("ub", to);
}

/* Names of planner_data: last first, or those of the ranks, last rank first. */
enum order { REVERSED, BY_RANK };

static int order_at(enum order order, int i)
{
    if (order == REVERSED)
        return NTENSORS - 1 - i;
    return i % (NTENSORS / 4) * 4 + 3 - i / (NTENSORS / 4);
}

static const char *torch_folder(const char *name, enum order order, int ntensors, int nchunks,
                                int nplaces)
{
    static char folder[1200];
    char path[1300];
    snprintf(folder, sizeof folder, "%s/%s", root, name);
    mkdir(folder, 0777);
    snprintf(path, sizeof path, "%s/f", folder);
    FILE *to = fopen(path, "w");
    fwrite("0123456789abcdef", 16, 1, to);
    fclose(to);
    snprintf(path, sizeof path, "%s/.metadata", folder);
    to = fopen(path, "w");
    fputs("\x80\x02"
          "c" META "\nMetadata\n)\x81}(",
          to);
    put_text(to, "state_dict_metadata");
    fputs("}(", to);
    for (int i = 0; i < ntensors; i++) {
        put_name(to, i);
        put_tensor(to, nchunks);
    }
    fputc('u', to);
    put_text(to, "planner_data");
    fputs("}(", to);
    for (int i = 0; i < ntensors; i++) {
        put_name(to, ntensors > 1 ? order_at(order, i) : 0);
        fputs("](", to);
        put_text(to, "model");
        put_text(to, "w");
        fputc('e', to);
    }
    fputc('u', to);
    put_text(to, "storage_data");
    fputs("}(", to);
    for (int i = 0; i < ntensors; i++) {
        put_place(to, ntensors > 1 ? order_at(order, i) : 0);
        fputs("q\x01", to);
        put_info(to);
        fputs("q\x02", to);
        for (int k = 1; k < nplaces; k++)
            fputs("h\x01h\x02", to);
    }
    fputs("uub.", to);
    fclose(to);
    return folder;
}

/* The code, with the error's text in `says`. */
static int opened(const char *path, int ntensors, char *says, size_t says_nbytes)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct ckpt *c = NULL;
    clock_t start = clock();
    tap_limit_cpu(DEADLINE_S);
    int rc = ckpt_open(&c, path, &err);
    tap_limit_cpu(0);
    diag("%.2f s: %s", (double)(clock() - start) / CLOCKS_PER_SEC, rc ? err.text : "opened");
    if (rc == FSDP_OK && ckpt_ntensors(c) != ntensors)
        rc = FSDP_EINTERNAL;
    ckpt_close(c);
    snprintf(says, says_nbytes, "%.1000s", err.text);
    return rc;
}

static void test_torch(void)
{
    char says[1200];
    ok(!opened(torch_folder("reversed", REVERSED, NTENSORS, 1, 1), NTENSORS, says, sizeof says),
       "planner_data reversed");
    ok(!opened(torch_folder("ranks", BY_RANK, NTENSORS, 1, 1), NTENSORS, says, sizeof says),
       "planner_data of the ranks, last rank first");
    int rc = opened(torch_folder("chunks", REVERSED, 1, NTENSORS, 1), 1, says, sizeof says);
    ok(rc == FSDP_ECORRUPT && strstr(says, "both hold"), "one chunk many times");
    rc = opened(torch_folder("places", REVERSED, 1, 1, NTENSORS), 1, says, sizeof says);
    ok(rc == FSDP_ECORRUPT && strstr(says, "twice"), "one place many times");
}

/* A folder whose index lists one tensor more than the file holds. */
static void test_index(void)
{
    char path[1200], says[1200];
    snprintf(path, sizeof path, "%s/hf", root);
    mkdir(path, 0777);
    strcat(path, "/model.safetensors");
    char *header = NULL;
    size_t nbytes = 0;
    FILE *text = open_memstream(&header, &nbytes);
    for (int i = 0; i < NTENSORS; i++)
        fprintf(text, "%c\"t%d\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%d,%d]}",
                i ? ',' : '{', i, i, i + 1);
    fputc('}', text);
    fclose(text);
    FILE *to = fopen(path, "w");
    uint64_t header_nbytes = nbytes;
    fwrite(&header_nbytes, 8, 1, to);
    fwrite(header, nbytes, 1, to);
    for (int i = 0; i < NTENSORS; i++)
        fputc(0, to);
    fclose(to);
    free(header);
    strcat(path, ".index.json");
    to = fopen(path, "w");
    fputs("{\"weight_map\":", to);
    for (int i = 0; i <= NTENSORS; i++)
        fprintf(to, "%c\"t%d\":\"model.safetensors\"", i ? ',' : '{', i);
    fputs("}}", to);
    fclose(to);
    *strrchr(path, '/') = 0;
    int rc = opened(path, NTENSORS, says, sizeof says);
    ok(rc == FSDP_ECORRUPT && strstr(says, "'t200000'"), "an index with one name too many");
}

/* Two names that a multiplicative hash maps to one value under every seed. */
static void test_hash(void)
{
    const char a[] = "layers.0.weight1", b[] = "layers.\xb0.we\xe9ght\xb1";
    bool differ = true;
    for (uint64_t seed = 0; seed < 1000; seed++)
        differ &= ckpt_hash(seed << 12, a, 16) != ckpt_hash(seed << 12, b, 16);
    ok(differ, "names made to collide under every seed have different hashes");
}

int main(void)
{
    snprintf(root, sizeof root, "%s", getenv("TEST_TMP") ? getenv("TEST_TMP") : "/tmp");
    test_torch();
    test_index();
    test_hash();
    return tap_done();
}
