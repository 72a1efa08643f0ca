/* SPDX-License-Identifier: Apache-2.0 */
/*
 * In place of a profiler: NVTX opens it (NVTX_INJECTION64_PATH), and it writes every range of the
 * domain "libfsdp" to the file NVTX_RECORD.PID, "depth name" when it begins, "depth" when it ends.
 * One thread, as the engine issues work from one.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <nvtx3/nvToolsExt.h>

static FILE *file;
static int depth;
static char ours, others; /* their addresses are domains */

static nvtxDomainHandle_t domain_create(const char *name)
{
    return (nvtxDomainHandle_t)(strcmp(name, "libfsdp") ? &others : &ours);
}

static int range_push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t *range)
{
    if ((char *)domain != &ours)
        return 0;
    fprintf(file, "%d %s\n", depth, range->message.ascii);
    return depth++;
}

static int range_pop(nvtxDomainHandle_t domain)
{
    if ((char *)domain != &ours)
        return 0;
    fprintf(file, "%d\n", --depth);
    return depth;
}

__attribute__((destructor)) static void finish(void)
{
    if (file)
        fclose(file);
}

int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t export_table);
int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t export_table)
{
    const NvtxExportTableCallbacks *callbacks = export_table(NVTX_ETID_CALLBACKS);
    NvtxFunctionTable table;
    unsigned nfunctions;
    char path[4096];

    if (!callbacks || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &nfunctions))
        return 0;
    snprintf(path, sizeof path, "%s.%d", getenv("NVTX_RECORD"), (int)getpid());
    if (!file && !(file = fopen(path, "w")))
        return 0;
    *table[NVTX_CBID_CORE2_DomainCreateA] = (NvtxFunctionPointer)domain_create;
    *table[NVTX_CBID_CORE2_DomainRangePushEx] = (NvtxFunctionPointer)range_push;
    *table[NVTX_CBID_CORE2_DomainRangePop] = (NvtxFunctionPointer)range_pop;
    return 1;
}
