/* SPDX-License-Identifier: Apache-2.0 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

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

/* align is a power of two, nbytes not 0. NULL without an error set. */
static void *allocate(size_t align, size_t nbytes)
{
    enum { PAGE = 4096, HUGE_PAGE = 2 << 20 };
    bool fails = atomic_fetch_add(&count, 1) + 1 == atomic_load(&fail_at);
    void *ptr = NULL;

    if (fails || nbytes > SIZE_MAX - HUGE_PAGE)
        return NULL;
    if (align <= _Alignof(max_align_t))
        return malloc(nbytes);
    if (nbytes % HUGE_PAGE >=
        HUGE_PAGE / 2) /* a last page that is nearly full is a huge one, too */
        nbytes += HUGE_PAGE - nbytes % HUGE_PAGE;
    if (posix_memalign(&ptr, nbytes < HUGE_PAGE ? align : HUGE_PAGE, nbytes))
        return NULL;
    /* One page fault for 2 MiB instead of 512: half the time of whoever fills a list once. */
    if (nbytes >= HUGE_PAGE)
        madvise(ptr, nbytes / PAGE * PAGE, MADV_HUGEPAGE); /* a wish */
    return ptr;
}

void *fsdp_alloc_unset(size_t nelem, size_t elem_nbytes, const char *name, struct fsdp_err *err)
{
    enum { LINE = 64, PAGE = 4096, LARGE = 64 << 10 };
    size_t nbytes;

    if (__builtin_mul_overflow(nelem, elem_nbytes, &nbytes)) {
        fsdp_err_set(err, FSDP_ENOMEM, "%s: %zu elements of %zu bytes overflow the address space",
                     name, nelem, elem_nbytes);
        return NULL;
    }
    void *ptr = allocate(nbytes < LARGE ? LINE : PAGE, nbytes ? nbytes : 1);
    if (!ptr)
        fsdp_err_set(err, FSDP_ENOMEM, "%s: out of memory allocating %zu bytes", name, nbytes);
    return ptr;
}

void *fsdp_alloc(size_t nelem, size_t elem_nbytes, const char *name, struct fsdp_err *err)
{
    void *ptr = fsdp_alloc_unset(nelem, elem_nbytes, name, err);
    return ptr ? memset(ptr, 0, nelem * elem_nbytes) : NULL;
}

void *fsdp_alloc_reserve(void *array, size_t nelem, size_t *max, size_t want, size_t elem_nbytes,
                         const char *name, struct fsdp_err *err)
{
    if (want <= *max)
        return array;
    void *grown = fsdp_alloc_unset(want, elem_nbytes, name, err);
    if (!grown)
        return NULL;
    if (nelem)
        memcpy(grown, array, nelem * elem_nbytes);
    fsdp_free(array);
    *max = want;
    return grown;
}

void *fsdp_alloc_grow(void *array, size_t nelem, size_t *max, size_t elem_nbytes, const char *name,
                      struct fsdp_err *err)
{
    enum { FIRST = 16 };

    if (nelem < *max)
        return array;
    size_t more = *max > SIZE_MAX / 2 ? SIZE_MAX : *max ? 2 * *max : FIRST;
    return fsdp_alloc_reserve(array, nelem, max, more, elem_nbytes, name, err);
}

void fsdp_free(void *ptr)
{
    free(ptr);
}

/* Of nbytes with the 0 byte; aligned for bytes alone. */
static char *alloc_text(size_t nbytes, struct fsdp_err *err)
{
    char *text = allocate(1, nbytes);
    if (!text)
        fsdp_err_set(err, FSDP_ENOMEM, "text: out of memory allocating %zu bytes", nbytes);
    return text;
}

char *fsdp_strdup(const char *text, struct fsdp_err *err)
{
    size_t nbytes = strlen(text) + 1;
    char *copy = alloc_text(nbytes, err);
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
    char *text = len < 0 ? NULL : alloc_text((size_t)len + 1, err);
    if (text) {
        va_start(ap, fmt);
        vsnprintf(text, (size_t)len + 1, fmt, ap);
        va_end(ap);
    }
    return text;
}
