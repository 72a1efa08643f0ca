/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opened at run time, so that linking a program needs no PMIx, and a program built with PMIx starts
 * where there is none. All of PMIx 3, 4 and 5 have this name.
 */
#include <dlfcn.h>
#include <stdlib.h>

#include "pmix_lib.h"

#define SONAME "libpmix.so.2"

/* The loader's places, then the folder that the build found it in. */
static void *open_library(void)
{
    static const char *const names[] = {SONAME, PMIX_LIBDIR "/" SONAME};
    void *handle = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names && !handle; i++)
        handle = dlopen(names[i], RTLD_NOW | RTLD_GLOBAL);
    return handle;
}

int pmix_lib_open(struct pmix_lib *out, struct fsdp_err *err)
{
    const struct {
        const char *name;
        void *function;
    } wanted[] = {
        {"PMIx_Init", &out->init},
        {"PMIx_Finalize", &out->finalize},
        {"PMIx_Put", &out->put},
        {"PMIx_Commit", &out->commit},
        {"PMIx_Fence", &out->fence},
        {"PMIx_Get", &out->get},
        {"PMIx_Error_string", &out->error_string},
    };
    void *handle = open_library();
    if (!handle)
        return fsdp_err_set(err, FSDP_ENOTFOUND,
                            "a PMIx server started this rank, but its library does not open: %s "
                            "(install libpmix2, or add its folder to LD_LIBRARY_PATH)",
                            dlerror());
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        void *symbol = dlsym(handle, wanted[i].name);
        if (!symbol)
            return fsdp_err_set(err, FSDP_ENOTFOUND, "%s has no function %s", SONAME,
                                wanted[i].name);
        *(void **)wanted[i].function = symbol;
    }
    return FSDP_OK;
}

void pmix_lib_release(pmix_value_t *value)
{
    if (value->type == PMIX_STRING)
        free(value->data.string);
    if (value->type == PMIX_BYTE_OBJECT)
        free(value->data.bo.bytes);
    free(value);
}
