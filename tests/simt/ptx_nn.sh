#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The operators' suites on what nvcc made of their kernels: the PTX that the library contains is executed
# in place of their bodies, as in ptx.sh. `make check-ptx` does it with nvcc's PTX for the other GPUs,
# which PTX_NN_LIST names. After a million instructions in whole launches an entry's later launches run
# its compiled body: each entry runs whole at least once, except those that are named here.
# run: long
# run: timeout=600
. "$TOP/tests/lib/tap.sh"

if [ ! -f "$BIN/tests/simt/ptx.list" ]; then
    echo "1..0 # SKIP built without CUDA"
    exit 0
fi
if [ ! -x "$BIN/tests/simt/library_ptx" ]; then
    echo "1..0 # SKIP built without zstd, which the library's PTX is compressed with"
    exit 0
fi
export SIMT_PTX_MOST=1000000
# Halves of fp32 are never fp32; sums in 16 bits that cuBLASLt cannot give a bias itself, which its
# stand-in always can.
unused='split_kernelIf|add_row_kernelI(13__nv_bfloat16|6__half)E'

# Operators alone: ptx.sh has the device's kernels.
operators() { grep -v -E '/cuda_(adafactor|adamw8bit|math|muon|optim)\.ptx$'; }
if [ -n "${PTX_NN_LIST:-}" ]; then
    sed "s|^|$TOP/|" "$PTX_NN_LIST" >files
else
    mkdir library
    "$BIN/tests/simt/library_ptx" "$BIN/../lib/libfsdp-cuda.so" "$TEST_TMP/library" >files 2>err
    ok $? "the library's PTX"
fi

run_on() { # suite, files of PTX, one a line
    (
        ulimit -c 0
        SIMT_PTX=$(tr '\n' ' ' <"$2") SIMT_PTX_LOG=$TEST_TMP/ran "$BIN/tests/simt/test_cuda_$1" >log 2>err
    ) 2>/dev/null
}

touch ran
SIMT_PTX_WHOLE=1 run_on dropout files
ok $? 'the suite dropout; no instruction of any entry is unknown'
for suite in nn nn_dtypes attention f8 f8_blocks cudnn cudnn_dropout; do
    run_on $suite files
    ok $? "the suite $suite"
done

operators <files | xargs -d '\n' cat | sed -n 's/^\(\.visible \)*\.entry \([A-Za-z0-9_]*\).*/\2/p' | sort -u >all
sed 's/^sm_[0-9a-z]* //' ran | sort -u >done
comm -13 done all | grep -vE "$unused" >log
test "$(wc -l <all)" -ge 150 && test ! -s log
ok $? "$(wc -l <all) entries: each ran to its end, except those for types without a test"
grep -E "$unused" done >log
test ! -s log
ok $? 'none of which ran'

# Off by one in global memory: an element behind the last is read.
real=$(grep '/elementwise\.ptx$' files) planted=$TEST_TMP/planted.ptx
awk '/\.entry /{ mine = /dropout_kernelIf/ } mine { sub(/setp\.ge\.u64/, "setp.gt.u64") } { print }' "$real" >"$planted"
sed "s|^$real\$|$planted|" files >with_plant
run_on dropout with_plant
test $? != 0 && ! cmp -s "$real" "$planted" && grep -q '^ptx: .*dropout_kernel.*outside of all allocations' err
ok $? 'a bound off by one is found'
echo "1..$n"
exit $bad
