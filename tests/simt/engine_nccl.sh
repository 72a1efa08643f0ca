#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Tests of the engine again, with its reductions on the stand-in for NCCL, which here refuses sums of
# buffers outside of the communicator's windows: in one level and two, over replicas, in every precision.
# test_keeping, which gathers in steps alone, shows that copy engines can take them: their buffers are
# in windows, too.
# run: long
# run: timeout=300
export FSDP_CUDA_LIBRARY=$BIN/tests/simt/libfsdp-nccl-sim.so TEST_DEVICE=cuda NCCL_STANDIN=windows

n=0 bad=0
for name in test_precision test_keeping test_access; do
    n=$((n + 1))
    [ $name != test_keeping ] || export NCCL_STANDIN=windows,engines
    out=$("$BIN/tests/core/$name" 2>&1)
    rc=$?
    NCCL_STANDIN=windows
    if [ $rc = 0 ] && [[ $out == *[1-9]..[1-9]* ]]; then
        echo "ok $n - $name: $(grep -c '^ok' <<<"$out") results"
    else
        echo "not ok $n - $name ended with $rc"
        grep -e '^not ok' -e '^rank' <<<"$out" | head -n 30 | sed 's/^/# /'
        bad=1
    fi
done
echo "1..$n"
exit $bad
