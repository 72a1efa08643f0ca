/* SPDX-License-Identifier: Apache-2.0 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fsdp/base.h"

static atomic_uint_fast64_t count;
static atomic_uint_fast64_t fail_at; /* absolute count that fails; 0: none */

uint64_t fsdp_alloc_count(void)
{
    return atomic_load(&count);
}

void fsdp_alloc_fail_at(uint64_t nth)
{
    atomic_store(&fail_at, nth ? atomic_load(&count) + nth : 0);
}

void *fsdp_alloc(size_t nelem, size_t elem_nbytes, const char *name, struct fsdp_err *err)
{
    enum { LINE = 64, PAGE = 4096, LARGE = 64 << 10 };
    uint64_t mine = atomic_fetch_add(&count, 1) + 1;
    size_t nbytes;

    if (__builtin_mul_overflow(nelem, elem_nbytes, &nbytes) || nbytes > SIZE_MAX - PAGE) {
        fsdp_err_set(err, FSDP_ENOMEM, "%s: %zu elements of %zu bytes overflow the address space",
                     name, nelem, elem_nbytes);
        return NULL;
    }
    size_t align = nbytes < LARGE ? LINE : PAGE;
    size_t rounded = nbytes ? (nbytes + align - 1) / align * align : align;
    void *ptr = atomic_load(&fail_at) == mine ? NULL : aligned_alloc(align, rounded);
    if (!ptr) {
        fsdp_err_set(err, FSDP_ENOMEM, "%s: out of memory allocating %zu bytes", name, nbytes);
        return NULL;
    }
    memset(ptr, 0, rounded);
    return ptr;
}

void fsdp_free(void *ptr)
{
    free(ptr);
}

char *fsdp_strdup(const char *text, struct fsdp_err *err)
{
    size_t nbytes = strlen(text) + 1;
    char *copy = fsdp_alloc(nbytes, 1, "text", err);
    if (copy)
        memcpy(copy, text, nbytes);
    return copy;
}

char *fsdp_sprintf(struct fsdp_err *err, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int len = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    char *text = len < 0 ? NULL : fsdp_alloc((size_t)len + 1, 1, "text", err);
    if (text) {
        va_start(ap, fmt);
        vsnprintf(text, (size_t)len + 1, fmt, ap);
        va_end(ap);
    }
    return text;
}
