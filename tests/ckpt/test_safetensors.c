/* SPDX-License-Identifier: Apache-2.0 */
/* Headers: what is written is read back; every way to lie is refused by name. */
#include <stdlib.h>
#include <string.h>

#include "../../ckpt/util/limits.h"
#include "../../ckpt/file/safetensors.h"
#include "tap.h"

struct bad {
    const char *what, *json;
    uint64_t data_nbytes;
    int status;
    const char *says; /* part of the error text */
};

#define T(rest) "{\"t\":{" rest "}}"
static const struct bad bads[] = {
    {"not JSON", "{\"t\":", 0, FSDP_ECORRUPT, "not valid JSON"},
    {"not an object", "[1]", 0, FSDP_ECORRUPT, "begin with '{'"},
    {"text behind", "{} {}", 0, FSDP_ECORRUPT, "not valid JSON"},
    {"duplicate key",
     "{\"t\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
     "\"t\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
     1, FSDP_ECORRUPT, "duplicate"},
    {"entry is no object", "{\"t\":3}", 0, FSDP_ECORRUPT, "'t'"},
    {"no dtype", T("\"shape\":[1],\"data_offsets\":[0,4]"), 4, FSDP_ECORRUPT, "dtype"},
    {"negative size", T("\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]"), 4,
     FSDP_ECORRUPT, "shape"},
    {"fractional size", T("\"dtype\":\"F32\",\"shape\":[1.0],\"data_offsets\":[0,4]"), 4,
     FSDP_ECORRUPT, "shape"},
    {"size as text", T("\"dtype\":\"F32\",\"shape\":[\"1\"],\"data_offsets\":[0,4]"), 4,
     FSDP_ECORRUPT, "shape"},
    {"no shape", T("\"dtype\":\"F32\",\"data_offsets\":[0,4]"), 4, FSDP_ECORRUPT, "shape"},
    {"number too large for any machine",
     T("\"dtype\":\"F32\",\"shape\":[99999999999999999999],\"data_offsets\":[0,4]"), 4,
     FSDP_ECORRUPT, "JSON"},
    {"size overflows",
     T("\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,0]"), 0,
     FSDP_ECORRUPT, "overflow"},
    {"size overflows next to a zero",
     T("\"dtype\":\"F32\",\"shape\":[0,4611686018427387904,8],\"data_offsets\":[0,0]"), 0,
     FSDP_ECORRUPT, "overflow"},
    {"one offset", T("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4]"), 4, FSDP_ECORRUPT,
     "data_offsets"},
    {"offsets reversed", T("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]"), 4,
     FSDP_ECORRUPT, "data_offsets"},
    {"negative offset", T("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[-4,0]"), 4,
     FSDP_ECORRUPT, "data_offsets"},
    {"beyond the end", T("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]"), 4,
     FSDP_ECORRUPT, "truncated"},
    {"too few bytes for the shape", T("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]"), 4,
     FSDP_ECORRUPT, "need 8 bytes"},
    {"hole before", T("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]"), 8, FSDP_ECORRUPT,
     "hole"},
    {"bytes behind the last tensor", T("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]"), 5,
     FSDP_ECORRUPT, "after its last tensor"},
    {"overlap",
     "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
     "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}",
     12, FSDP_ECORRUPT, "'b': its data overlaps"},
    {"hole between",
     "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
     "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[8,12]}}",
     12, FSDP_ECORRUPT, "'b': its data is preceded by a hole"},
    {"metadata is no object", "{\"__metadata__\":[]}", 0, FSDP_ECORRUPT, "__metadata__"},
    {"metadata holds a number", "{\"__metadata__\":{\"a\":1}}", 0, FSDP_ECORRUPT, "not a string"},
    {"bad UTF-8", "{\"\xff\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
     FSDP_ECORRUPT, "JSON"},
#define SHARD(info)                                                                                \
    "{\"__metadata__\":{\"DCP_SHARDING_INFO\":\"" info "\"},"                                      \
    "\"t\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}"
    {"sharding info is no JSON", SHARD("{"), 2, FSDP_ECORRUPT, "DCP_SHARDING_INFO"},
    {"sharding info lacks the tensor", SHARD("{}"), 2, FSDP_ECORRUPT, "'t'"},
    {"saved_offsets of two dimensions", SHARD("{\\\"t\\\":{\\\"saved_offsets\\\":[0,0]}}"), 2,
     FSDP_ECORRUPT, "saved_offsets"},
    {"negative saved_offsets", SHARD("{\\\"t\\\":{\\\"saved_offsets\\\":[-1]}}"), 2, FSDP_ECORRUPT,
     "saved_offsets"},
    {"saved_offsets overflow", SHARD("{\\\"t\\\":{\\\"saved_offsets\\\":[9223372036854775807]}}"),
     2, FSDP_ECORRUPT, "overflow"},
    {"box leaves the tensor",
     SHARD("{\\\"t\\\":{\\\"saved_offsets\\\":[3],\\\"global_shape\\\":[4]}}"), 2, FSDP_ECORRUPT,
     "leaves the tensor"},
    {"global_shape of two dimensions",
     SHARD("{\\\"t\\\":{\\\"saved_offsets\\\":[0],\\\"global_shape\\\":[4,4]}}"), 2, FSDP_ECORRUPT,
     "global_shape"},
    {"global_shape overflows",
     SHARD("{\\\"t\\\":{\\\"saved_offsets\\\":[0],\\\"global_shape\\\":[9223372036854775807]}}"), 2,
     FSDP_ECORRUPT, "overflow"},
};

static void test_bad(void)
{
    for (size_t i = 0; i < sizeof bads / sizeof bads[0]; i++) {
        struct ckpt_st_header header;
        struct fsdp_err err = FSDP_ERR_INIT;
        size_t len = strlen(bads[i].json);
        char *exact = malloc(len); /* a reader that runs over the end is caught by the sanitizer */
        memcpy(exact, bads[i].json, len);
        int rc = ckpt_st_parse(&header, exact, len, 8 + len + bads[i].data_nbytes, "file.x", &err);
        ok(rc == bads[i].status && strstr(err.text, bads[i].says) && strstr(err.text, "file.x"),
           "%s: %s", bads[i].what, rc ? err.text : "accepted");
        if (rc == FSDP_OK)
            ckpt_st_header_free(&header);
        free(exact);
    }
}

static void test_good(void)
{
    static const char json[] =
        "{\"__metadata__\":{\"format\":\"pt\"},"
        "\"b\":{\"dtype\":\"F16\",\"shape\":[2,3],\"data_offsets\":[8,20]},"
        "\"empty\":{\"dtype\":\"F32\",\"shape\":[0,7],\"data_offsets\":[8,8]},"
        "\"a\":{\"data_offsets\":[0,8],\"shape\":[],\"dtype\":\"I64\"}}   ";
    struct ckpt_st_header h;
    struct fsdp_err err = FSDP_ERR_INIT;
    uint64_t start = 8 + sizeof json - 1;
    ok(ckpt_st_parse(&h, json, sizeof json - 1, start + 20, "f", &err) == FSDP_OK,
       "a plain header: %s", err.text);
    ok(h.nentries == 3 && !strcmp(h.entries[0].name, "a") && h.entries[0].ndim == 0 &&
           h.entries[0].pos == start && h.entries[2].pos == start + 8 &&
           h.entries[2].nbytes == 12 && h.entries[2].dtype == FSDP_F16 && !h.sharded,
       "its entries by position");
    ckpt_st_header_free(&h);
    ok(ckpt_st_parse(&h, "{}", 2, 10, "f", &err) == FSDP_OK && h.nentries == 0, "an empty file");
    ckpt_st_header_free(&h);
    ok(ckpt_st_parse(&h, "{}", 2, 9, "f", &err) == FSDP_ECORRUPT, "a header longer than the file");
}

/* One tensor that cannot be read leaves the others readable, and has its bytes. */
static void test_odd(void)
{
    char json[3000], name[1026];
    struct ckpt_st_header h;
    struct fsdp_err err = FSDP_ERR_INIT;
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = 0;
    int len = snprintf(json, sizeof json,
                       "{\"d\":{\"dtype\":\"F77\",\"shape\":[3],\"data_offsets\":[0,4]},"
                       "\"l\":{\"dtype\":\"f32\",\"shape\":[1],\"data_offsets\":[4,8]},"
                       "\"nine\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,1],"
                       "\"data_offsets\":[8,9]},"
                       "\"%s\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[9,10]},"
                       "\"a\\u0000b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[10,11]},"
                       "\"w\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[11,12]}}",
                       name);
    static const char *const says[] = {"'d': unknown dtype 'F77'", "'l': unknown dtype 'f32'",
                                       "'nine' has 9 dimensions; at most 8",
                                       "name of 1025 bytes; at most 1024",
                                       "'a\\0b' has a name with a 0 byte"};
    size_t nbytes = (size_t)len;
    if (!ok(ckpt_st_parse(&h, json, nbytes, 8 + nbytes + 12, "f", &err) == FSDP_OK &&
                h.nentries == 6,
            "tensors that cannot be read: %s", err.text))
        return;
    for (int i = 0; i < 5; i++)
        ok(h.entries[i].why && strstr(ckpt_st_why(&h, &h.entries[i]), says[i]), "%s", says[i]);
    ok(!ckpt_st_why(&h, &h.entries[5]) && !strcmp(h.entries[5].name, "w"), "the last can be read");
    ckpt_st_header_free(&h);
    ok(ckpt_st_parse(&h, json, nbytes, 8 + nbytes + 13, "f", &err) == FSDP_ECORRUPT,
       "their bytes count");
    ok(ckpt_st_parse(&h, "{\"d\":{\"dtype\":\"F77\",\"shape\":[1],\"data_offsets\":[0,4]}}", 56,
                     8 + 56 + 2, "f", &err) == FSDP_ECORRUPT &&
           strstr(err.text, "truncated"),
       "and must be there");
}

static void test_format(void)
{
    const uint64_t shape[] = {2, 5}, offset[] = {3, 0}, whole[] = {9, 5};
    struct ckpt_st_entry entries[] = {
        {.name = "w\"\\\n\t\xc3\xa9",
         .dtype = FSDP_F32,
         .ndim = 2,
         .shape = shape,
         .offset = offset,
         .global_shape = whole},
        {.name = "scalar", .dtype = FSDP_U8, .ndim = 0},
    };
    struct ckpt_st_header h;
    struct fsdp_err err = FSDP_ERR_INIT;
    char *raw;
    size_t nbytes;
    ok(ckpt_st_format(&raw, &nbytes, entries, 2, true, &err) == FSDP_OK, "a header is made");
    uint64_t len = 0;
    for (int i = 7; i >= 0; i--)
        len = len << 8 | (unsigned char)raw[i];
    ok(nbytes % CKPT_HEADER_ALIGN == 0 && len == nbytes - 8, "data starts at a multiple of %d",
       CKPT_HEADER_ALIGN);
    ok(entries[0].pos == nbytes && entries[1].pos == nbytes + 40, "positions follow");
    ok(ckpt_st_parse(&h, raw + 8, len, nbytes + 41, "f", &err) == FSDP_OK, "it is read back: %s",
       err.text);
    ok(h.sharded && h.nentries == 2 && !strcmp(h.entries[0].name, entries[0].name) &&
           h.entries[0].offset[0] == 3 && h.entries[0].global_shape &&
           h.entries[0].global_shape[0] == 9 && h.entries[1].ndim == 0,
       "names are escaped, boxes kept");
    ckpt_st_header_free(&h);
    fsdp_free(raw);
}

/* Every single flipped bit either is refused or leaves a header that still makes sense. */
static void test_flips(void)
{
    static const char json[] =
        "{\"__metadata__\":{\"DCP_SHARDING_INFO\":\"{\\\"a\\\":{\\\"saved_offsets\\\":[1],"
        "\\\"global_shape\\\":[4]}}\"},"
        "\"a\":{\"dtype\":\"I16\",\"shape\":[3],\"data_offsets\":[0,6]}}";
    size_t len = sizeof json - 1;
    bool sane = true;
    for (size_t bit = 0; bit < len * 8; bit++) {
        struct ckpt_st_header h;
        char *copy = malloc(len);
        memcpy(copy, json, len);
        copy[bit / 8] ^= (char)(1 << bit % 8);
        if (ckpt_st_parse(&h, copy, len, 8 + len + 6, "f", NULL) == FSDP_OK) {
            sane &= h.nentries <= 1;
            for (int i = 0; i < h.nentries; i++)
                sane &= h.entries[i].pos == 8 + len && h.entries[i].nbytes == 6;
            ckpt_st_header_free(&h);
        }
        free(copy);
    }
    ok(sane, "%zu flipped bits", len * 8);
}

int main(void)
{
    test_good();
    test_odd();
    test_bad();
    test_format();
    test_flips();
    return tap_done();
}
