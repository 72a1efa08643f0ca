#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What a user reads who asks for a GPU that cannot be had: every reason by name, with the fix. A driver
# that is too old, or shows no GPU, is a stand-in for libcuda.so.1 in front of any real one.
set -u
library=$BIN/../lib/libfsdp-cuda.so n=0 bad=0
unset FSDP_CUDA_LIBRARY

try() { # expected (ok|fail), pattern of the output, text, settings of the environment..., then key=value
    local want=$1 pattern=$2 text=$3 out rc got=ok
    shift 3
    out=$(cd "$TOP" && env "$@" "checkpoint.path=$TEST_TMP/ckpt" train.steps=0 checkpoint.interval=0 2>&1 </dev/null)
    rc=$?
    n=$((n + 1))
    [ $rc = 0 ] || got=fail
    if [ $got = "$want" ] && grep -q -e "$pattern" <<<"$out"; then
        echo "ok $n - $text"
    else
        echo "not ok $n - $text"
        tail -n 5 <<<"$out" | sed 's/^/# /'
        bad=1
    fi
}
launch=("$BIN/fsdp-launch" -v -n 1 examples/llama-tiny.yaml)

# Another folder, so that no library lies next to the program.
cp "$BIN/fsdp-launch" "$TEST_TMP/fsdp-launch"
try fail 'there is no libfsdp-cuda.so .*WITH_CUDA=1' "no library" \
    "$TEST_TMP/fsdp-launch" -n 1 examples/llama-tiny.yaml fsdp.device=cuda
try fail 'nowhere.so cannot be opened' "a library that is not there" \
    FSDP_CUDA_LIBRARY=nowhere.so "${launch[@]}" fsdp.device=cuda
try fail 'libfsdp.so is not of this build' "another library" \
    FSDP_CUDA_LIBRARY="$BIN/../lib/libfsdp.so" "${launch[@]}" fsdp.device=cuda
try fail 'allowed: auto, cpu' "a device that there is not" "${launch[@]}" fsdp.device=tpu

if [ ! -f "$library" ]; then
    echo "ok $((n += 1)) # SKIP built without CUDA"
    echo "1..$n"
    exit $bad
fi

cat >"$TEST_TMP/driver.c" <<'END'
#include <stdlib.h>
#include <string.h>
int cuInit(unsigned flags) { return flags ? 1 : 100; /* no device */ }
int cuDriverGetVersion(int *version) { return *version = atoi(getenv("DRIVER")), 0; }
int cuDeviceGetCount(int *count) { return *count = 0; }
int cuGetProcAddress_v2(const char *symbol, void **fn, int version, unsigned long flags, int *status)
{
    (void)version, (void)flags;
    if (status)
        *status = 0;
    *fn = (void *)cuInit;
    if (!strcmp(symbol, "cuDriverGetVersion"))
        *fn = (void *)cuDriverGetVersion;
    if (!strcmp(symbol, "cuDeviceGetCount"))
        *fn = (void *)cuDeviceGetCount;
    if (!strcmp(symbol, "cuGetProcAddress"))
        *fn = (void *)cuGetProcAddress_v2;
    return 0;
}
END
"${TEST_CC:-cc}" -w -shared -fPIC -o "$TEST_TMP/libcuda.so.1" "$TEST_TMP/driver.c" || exit 1
driver=(LD_LIBRARY_PATH="$TEST_TMP")
try fail 'driver is for CUDA 11.4, .* built with .*newer driver' "a driver that is too old" \
    "${driver[@]}" DRIVER=11040 "${launch[@]}" fsdp.device=cuda
try fail 'shows no GPU to this process.*CUDA_VISIBLE_DEVICES' "no GPU" \
    "${driver[@]}" DRIVER=99000 "${launch[@]}" fsdp.device=cuda
try ok 'device auto: the CPU is used (.*shows no GPU' "auto says why it takes the CPU" \
    "${driver[@]}" DRIVER=99000 "${launch[@]}" fsdp.device=auto
if ldconfig -p 2>/dev/null | grep -q 'libcuda\.so\.1'; then
    echo "ok $((n += 1)) # SKIP this machine has a driver"
else
    try fail 'no NVIDIA driver (libcuda.so.1)' "no driver" "${launch[@]}" fsdp.device=cuda
fi
echo "1..$n"
exit $bad
