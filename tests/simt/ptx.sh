#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The device's suite on what nvcc made of the kernels, for each architecture: its PTX is executed in
# place of their bodies, with checks of memory, alignment, registers and races (tests/simt/ptx_run.cc).
# Every entry must run to its end, except those that are named here; planted faults must be found.
# run: long
# run: timeout=600
. "$TOP/tests/lib/tap.sh"

list=$BIN/tests/simt/ptx.list
if [ ! -f "$list" ]; then
    echo "1..0 # SKIP built without CUDA"
    exit 0
fi
# Kernels for types that no test of the suite uses yet.
unused='map_kernelI13__nv_bfloat16(S0_|6__half)6assign|map_kernelI6__half(S0_|13__nv_bfloat16)6assign
map_kernelIf(f|6__half)6assign|map_kernelIff3add|dequantize_kernelI(6__half|13__nv_bfloat16)E
adamw_kernelI12split_masterILi4EES0_ILi1EEfE|adamw_kernelI12whole_masterI13__nv_bfloat16Li4EES0_IS1_Li1EEtE
map_kernelI13__nv_bfloat16(f|6__half)3add|map_kernelI6__half(S0_|f|13__nv_bfloat16)3add|reduce_kernelI(5sumsq|6absmax)6__half
adamw_kernelI12whole_masterI6__half|adamw_kernelI9no_masterILi4EES0_ILi1EEtE|schedulefree_kernelI(f|6__half)E|schedulefree_y_kernelI6__halfE'
unused=$(tr '\n' '|' <<<"$unused" | sed 's/|$//')

export SIMT_PTX_WHOLE=1 # no instruction of any entry is unknown
files() { sed "s|^|$TOP/|" "$list" | grep "/sm_$1/libfsdp/device/"; }
run_on() { # files of PTX, one a line
    (ulimit -c 0; SIMT_PTX=$(tr '\n' ' ' <<<"$1") SIMT_PTX_LOG=$TEST_TMP/ran "$BIN/tests/simt/test_device" >log 2>err) 2>/dev/null
}
# The names of all entries of a file
entries() { sed -n 's/^\(\.visible \)*\.entry \([A-Za-z0-9_]*\).*/\2/p' "$@"; }

for arch in $(sed 's|.*/sm_\([0-9a-z]*\)/.*|\1|' "$list" | sort -u); do
    rm -f ran
    touch ran
    run_on "$(files "$arch")"
    ok $? "the device's suite on the PTX of sm_$arch"
    files "$arch" | xargs -d '\n' cat | entries | sort >all
    sed "s/^sm_$arch //" ran | sort -u | comm -13 - all | grep -vE "$unused" >log
    test "$(wc -l <all)" -ge 50 && test ! -s log
    ok $? "$(wc -l <all) entries: each ran to its end, except those for types without a test"
    sed "s/^sm_$arch //" ran | grep -E "$unused" >log
    test ! -s log
    ok $? 'none of which ran'
done

# plant FILE ENTRY AWK WANTED TEXT: a fault in an entry of the newest architecture, made by a program of awk
# on its lines, ends the suite with the wanted words.
plant() {
    local real planted=$TEST_TMP/planted.ptx
    real=$(files "$arch" | grep "/$1.ptx")
    awk -v entry="$2" "/^(\.visible )?\.entry /{ mine = index(\$0, entry) } mine && !done { $3 } { print }" "$real" >"$planted"
    if cmp -s "$real" "$planted"; then
        ok 1 "$5: the PTX has another form"
        return
    fi
    run_on "$(files "$arch" | sed "s|^$real\$|$planted|")"
    test $? != 0 && grep -qE "^ptx: .*($4)" err
    ok $? "$5 is found"
}
plant cuda_math reduce_kernelI5sumsq 'if (/bar\.sync/) { done = 1; next }' 'a race|not written yet' 'a missing barrier'
plant cuda_muon matmul_kernel 'if (sub(/bar\.sync[ \t]*0/, "bar.warp.sync 0xffffffff")) done = 1' 'a race in shared memory' \
    'a race between two warps'
plant cuda_math reduce_kernelI5sumsq 'if (/ld\.shared/ && sub(/\+1024\]/, "+1032]")) done = 1' \
    'outside of the [0-9]* bytes of shared' 'an index off by one'
plant cuda_math quantize_kernel 'if (/ld\.global\.v4\.f32/ && sub(/\+16\]/, "+8]")) done = 1' \
    'not a multiple of 16' 'a misaligned vector'
plant cuda_math reduce_kernelI6absmax 'if (/st\.shared/) { done = 1; next }' 'shared memory.*not written yet' 'shared memory that is not written'
plant cuda_math reduce_kernelI6absmax 'if (/mov\.u32.*%tid\.x/) { done = 1; next }' 'a register is not written yet' \
    'a register that is not written'
plant cuda_math reduce_kernelI6absmax 'if (sub(/add\.s64/, "sad.s64")) done = 1' \
    'the instruction is not known' 'an unknown instruction'
echo "1..$n"
exit $bad
