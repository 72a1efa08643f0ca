/* SPDX-License-Identifier: Apache-2.0 */
/* pmix_lib.h: the PMIx library, opened when the environment names a PMIx server. */
#ifndef PMIX_LIB_H
#define PMIX_LIB_H

#include <pmix.h>

#include "fsdp/base.h"

struct pmix_lib {
    pmix_status_t (*init)(pmix_proc_t *proc, pmix_info_t info[], size_t ninfo);
    pmix_status_t (*finalize)(const pmix_info_t info[], size_t ninfo);
    pmix_status_t (*put)(pmix_scope_t scope, const char key[], pmix_value_t *value);
    pmix_status_t (*commit)(void);
    pmix_status_t (*fence)(const pmix_proc_t procs[], size_t nprocs, const pmix_info_t info[],
                           size_t ninfo);
    pmix_status_t (*get)(const pmix_proc_t *proc, const char key[], const pmix_info_t info[],
                         size_t ninfo, pmix_value_t **value);
    const char *(*error_string)(pmix_status_t status);
};

/* The functions; the library stays open for the life of the process. FSDP_ENOTFOUND: it is not
 * there, or lacks a function. */
int pmix_lib_open(struct pmix_lib *out, struct fsdp_err *err);
/* Releases what `get` gave: an integer, text or bytes. */
void pmix_lib_release(pmix_value_t *value);

#endif
