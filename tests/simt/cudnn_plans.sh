#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# cuDNN takes our graphs of attention, for GPUs that it is told of: up to the loading of the kernel
# that it compiled, which needs a driver. A stand-in is there for that; with it cuDNN also says what
# workspace its plans take, which is what plans for a GPU that is not here count on.
# run: long
# run: timeout=600
. "$TOP/tests/lib/tap.sh"

if [ -n "${TEST_SANITIZER:-}" ]; then
    echo "1..0 # SKIP not under a sanitizer: cuDNN is not built with it"
    exit 0
fi
cuda=${CUDA_HOME:-$(ls -d /usr/local/cuda /usr/local/cuda-* 2>/dev/null | head -n 1)}
lib=$(dirname "$(ls "$cuda"/lib64/libcudnn.so.9 "$cuda"/lib/libcudnn.so.9 2>/dev/null | head -n 1)")
if [ ! -f "$cuda/include/cudnn.h" ] || [ ! -f "$lib/libcudnn.so.9" ] || [ ! -f "$lib/stubs/libcuda.so" ]; then
    echo "1..0 # SKIP no cuDNN here"
    exit 0
fi
bash "$TOP/tests/lib/cudnn_driver.sh" "$lib/stubs/libcuda.so" libcuda.so.1 || exit 1
$TEST_CC -std=gnu11 -O1 -D_GNU_SOURCE -DHAVE_CUDNN=1 -I"$TOP/models" -I"$TOP/models/nn/cuda" \
    -I"$TOP/libfsdp/include" -isystem "$cuda/include" -o plans "$TOP/tests/simt/cudnn_plans.c" \
    "$TOP"/models/nn/cuda/cudnn_{sdpa,graph}.c "$TOP/models/nn/cuda_sizes.c" "$BIN/../lib/libfsdp.a" -lm -ldl -lrt -pthread || exit 1
# compute capability, log, shapes, packed shapes, shapes with dropout
plans() { LD_LIBRARY_PATH="$TEST_TMP:$lib" ./plans "$1" "${@:3}" >"$2" 2>&1; }
plans 90 log

compiled() { # shape, text
    test "$(grep -c "$1: \(compiled\|planned\)" log)" = 2
    ok $? "$2"
}
compiled 'B4 T4096 heads 32/8 of 128 BF16' 'grouped heads of 128'
compiled 'B8 T1024 heads 12/12 of 64 BF16' 'heads of 64'
compiled 'B3 T1000 heads 6/2 of 64 F16' 'fp16, a length that is no multiple of anything'
compiled 'B1 T4096 heads 32/8 of 128 BF16 deterministic' 'deterministic, grouped heads'
compiled 'B1 T1024 heads 12/12 of 64 BF16 deterministic' 'deterministic'
compiled 'B1 T8192 heads 32/8 of 128 BF16 window' 'a window'
compiled 'B2 T1000 heads 4/2 of 64 F16 window' 'a window that is no multiple of anything'
compiled 'B1 T4096 heads 8/2 of 128 BF16 deterministic window' 'deterministic, a window'
compiled 'B2 T300 heads 4/2 of 256 BF16' 'heads of 256'
compiled 'B64 T1024 heads 8/2 of 128 BF16' 'packed documents, grouped heads'
compiled 'B8 T1000 heads 6/6 of 64 F16' 'packed documents of fp16'
compiled 'B128 T500 heads 4/1 of 256 BF16 window' 'packed documents, a window, heads of 256'
compiled 'B4 T4096 heads 32/8 of 128 BF16 dropout' 'dropout'
compiled 'B1 T1024 heads 12/12 of 64 BF16 deterministic dropout' 'deterministic, dropout'
compiled 'B2 T1000 heads 4/2 of 64 F16 window dropout' 'a window, dropout'
compiled 'B64 T1024 heads 8/2 of 128 BF16 dropout' 'packed documents, dropout'
test "$(grep -c 'of 100 BF16: cuDNN, .*NOT_SUPPORTED' log)" = 2
ok $? 'heads of 100 are refused in its words'

# workspaces LOG LEAST MOST COUNT: cuDNN's are as large as ours, within so many bytes.
workspaces() {
    awk -v least="$2" -v most="$3" -v count="$4" '/ planned / { n++; bad += $NF < least || $NF > most }
        END { exit !(n == count && !bad) }' "$1" || { sed 's/^/# /' "$1"; false; }
}
workspaces log 0 0 38
ok $? 'compute capability 9.0: workspaces are to the byte those that a plan without a GPU counts on'
plans 80 log80 2 1 0
grep -v packed log80 >whole
workspaces whole -256 0 4
ok $? '8.0: within 256 bytes'
# 64 documents of 1024 positions, 8 heads of 128: as if each took a whole row.
nbytes=$(sed -n 's/^packed backward.* (\([0-9]*\) bytes).*/\1/p' log80)
test "${nbytes:-0}" -ge $((64 * 1024 * 8 * 128 * 4))
ok $? "8.0: packed documents take ${nbytes:-no} bytes, which is why they are not planned there"
plans 100 log100 2 0 2
workspaces log100 -256 0 8
ok $? '10.0: within 256 bytes, with a bit for each probability that dropout may drop'
echo "1..$n"
exit $bad
