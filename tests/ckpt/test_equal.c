/* SPDX-License-Identifier: Apache-2.0 */
/* Two stored tensors that should be one: their bits in one type, their numbers in two. */
#include <stdio.h>
#include <string.h>

#include "ckpt/ckpt.h"
#include "tap.h"

static char header[1024], data[1024];
static size_t nheader, ndata;

static void put(const char *name, const char *dtype, const void *values, size_t nbytes, int count)
{
    nheader += (size_t)snprintf(header + nheader, sizeof header - nheader,
                                "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%d],\"data_offsets\":[%zu,"
                                "%zu]}",
                                nheader > 1 ? "," : "", name, dtype, count, ndata, ndata + nbytes);
    memcpy(data + ndata, values, nbytes);
    ndata += nbytes;
}

static void write_file(const char *path)
{
    FILE *file = fopen(path, "wb");
    const uint64_t nbytes = nheader + 1;
    ok(file && fwrite(&nbytes, 8, 1, file) == 1 && fwrite(header, nheader, 1, file) == 1 &&
           fputc('}', file) == '}' && fwrite(data, ndata, 1, file) == 1 && !fclose(file),
       "a file of tensors");
}

int main(void)
{
    const double wide[2] = {1.0, 1.0 + 0x1p-52}, same[2] = {1.0, 1.0 + 0x1p-52}, low[2] = {1, 1};
    const double nan[2] = {0.0 / 0.0, 2}, minus[2] = {0, -0.0}, zero[2] = {0, 0};
    const float single[2] = {1, 1};
    const int64_t large[2] = {1, (INT64_C(1) << 53) + 1}, near[2] = {1, INT64_C(1) << 53};
    struct fsdp_err err = FSDP_ERR_INIT;
    struct ckpt *ckpt = NULL;

    header[nheader++] = '{';
    put("wide", "F64", wide, sizeof wide, 2);
    put("same", "F64", same, sizeof same, 2);
    put("low", "F64", low, sizeof low, 2);
    put("nan", "F64", nan, sizeof nan, 2);
    put("nan2", "F64", nan, sizeof nan, 2);
    put("minus", "F64", minus, sizeof minus, 2);
    put("zero", "F64", zero, sizeof zero, 2);
    put("single", "F32", single, sizeof single, 2);
    put("large", "I64", large, sizeof large, 2);
    put("near", "I64", near, sizeof near, 2);
    put("large2", "I64", large, sizeof large, 2);
    write_file("t.safetensors");
    ok(ckpt_open(&ckpt, "t.safetensors", &err) == FSDP_OK, "opened: %s", err.text);
    const struct {
        const char *one, *other;
        int rc;
    } pairs[] = {
        {"wide", "same", FSDP_OK},       {"wide", "low", FSDP_EINVAL},
        {"nan", "nan2", FSDP_OK},        {"minus", "zero", FSDP_EINVAL},
        {"low", "single", FSDP_OK},      {"single", "low", FSDP_OK},
        {"single", "wide", FSDP_EINVAL}, {"large", "near", FSDP_EINVAL},
        {"large", "large2", FSDP_OK},    {"large", "none", FSDP_OK},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        err = (struct fsdp_err)FSDP_ERR_INIT;
        const int rc = ckpt_check_equal(ckpt, pairs[i].one, pairs[i].other, &err);
        ok(rc == pairs[i].rc && (!rc || strstr(err.text, pairs[i].one)), "%s and %s: %s",
           pairs[i].one, pairs[i].other, rc ? err.text : "equal");
    }
    ckpt_close(ckpt);
    return tap_done();
}
