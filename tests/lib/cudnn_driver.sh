#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# cudnn_driver.sh STUB OUT.so - a stand-in for the driver, for cudnn_plans.sh: it has all functions of
# CUDA's stub, which succeed and do nothing, so that cuDNN "loads" what it compiled.
nm -D --defined-only "$1" | awk '$2 == "T" { print $3 }' | sort -u >driver.syms
{
    cat <<'C'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
C
    while read -r name; do
        case $name in
        cuGetProcAddress | cuGetProcAddress_v2)
            cat <<C
int $name(const char *what, void **out, int version, uint64_t flags, int *status)
{
    char second[256];
    snprintf(second, sizeof second, "%s_v2", what);
    *out = dlsym(RTLD_DEFAULT, second);
    if (!*out)
        *out = dlsym(RTLD_DEFAULT, what);
    if (status)
        *status = !*out;
    return *out ? 0 : 500;
}
C
            ;;
        cuDriverGetVersion) echo "int $name(int *out) { *out = 13000; return 0; }" ;;
        cuDeviceGetCount) echo "int $name(int *out) { *out = 1; return 0; }" ;;
        cuDeviceGet | cuCtxGetDevice) echo "int $name(int *out) { *out = 0; return 0; }" ;;
        cuDeviceGetAttribute) echo "int $name(int *out) { *out = 1024; return 0; }" ;;
        cuDeviceTotalMem_v2) echo "int $name(size_t *out) { *out = (size_t)1 << 37; return 0; }" ;;
        cuGetErrorString | cuGetErrorName)
            echo "int $name(int error, const char **out) { *out = \"an error\"; return 0; }"
            ;;
        cuLibraryLoad* | cuLibraryGet* | cuKernelGetFunction | cuModuleLoad* | cuModuleGetFunction | \
            cuCtxGetCurrent | cuDevicePrimaryCtxRetain)
            echo "int $name(void **out) { *out = (void *)0x1000; return 0; }"
            ;;
        cuFuncGetAttribute | cuKernelGetAttribute) echo "int $name(int *out) { *out = 128; return 0; }" ;;
        cuOccupancyMax*) echo "int $name(int *out) { *out = 1; return 0; }" ;;
        cuGetExportTable) echo "int $name(void) { return 500; }" ;;
        *) echo "int $name(void) { return 0; }" ;;
        esac
    done <driver.syms
} >driver.c
${TEST_CC:-cc} -shared -fPIC -w -o "$2" driver.c -Wl,-soname,libcuda.so.1 -ldl
