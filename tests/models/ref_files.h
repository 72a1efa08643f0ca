/* SPDX-License-Identifier: Apache-2.0 */
/* ref_files.h: reads the reference data under tests/data: safetensors of F32, JSON, uint16. It
 * shares no code with what is tested. */
#ifndef REF_FILES_H
#define REF_FILES_H

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fsdp/base.h"

/* Path of a file of a reference folder. The result is static. */
static inline const char *ref_path(const char *folder, const char *name)
{
    static char path[8][1024];
    static int next;
    const char *top = getenv("TOP");
    char *out = path[next++ % 8];
    snprintf(out, sizeof path[0], "%s/tests/data/%s/%s", top ? top : ".", folder, name);
    return out;
}

/* Whole file, freed by the caller; stops the test where it cannot. */
static inline void *ref_read(const char *path, size_t *nbytes)
{
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END)) {
        fprintf(stderr, "%s: cannot be read\n", path);
        exit(1);
    }
    *nbytes = (size_t)ftell(file);
    rewind(file);
    char *data = malloc(*nbytes + 1);
    if (!data || fread(data, 1, *nbytes, file) != *nbytes)
        exit(1);
    data[*nbytes] = 0;
    fclose(file);
    return data;
}

struct ref_tensors {
    char *data, *body;
    json_t *header;
};

static inline struct ref_tensors ref_tensors_open(const char *path)
{
    size_t nbytes;
    struct ref_tensors t = {.data = ref_read(path, &nbytes)};
    uint64_t header_nbytes;
    memcpy(&header_nbytes, t.data, sizeof header_nbytes);
    t.body = t.data + 8 + header_nbytes;
    t.header = json_loadb(t.data + 8, header_nbytes, 0, NULL);
    if (!t.header)
        exit(1);
    return t;
}

static inline void ref_tensors_close(struct ref_tensors *t)
{
    json_decref(t->header);
    free(t->data);
}

/* The values of a tensor of nelem elements; NULL where it is absent, is not F32 or has another
 * size. */
static inline const float *ref_tensor(const struct ref_tensors *t, const char *name, uint64_t nelem)
{
    const json_t *entry = json_object_get(t->header, name);
    const json_t *offsets = json_object_get(entry, "data_offsets");
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    json_int_t begin = json_integer_value(json_array_get(offsets, 0));
    json_int_t end = json_integer_value(json_array_get(offsets, 1));
    if (!entry || !dtype || strcmp(dtype, "F32") || (uint64_t)(end - begin) != nelem * 4)
        return NULL;
    return (const float *)(t->body + begin);
}

/* Number k of the list at path "a.b" of a JSON file, or the number itself where k < 0. */
static inline double ref_number(const json_t *root, const char *section, const char *key, int k)
{
    const json_t *value = json_object_get(section ? json_object_get(root, section) : root, key);
    return json_number_value(k < 0 ? value : json_array_get(value, (size_t)k));
}

#endif
