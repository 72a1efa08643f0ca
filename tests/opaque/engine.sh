#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Tests of the engine again, on a device whose memory the host cannot touch (opaque.c): snapshots,
# slices, hooks, every precision, split and offloaded state, whole parameters and units
# unsharded by hand.
# run: timeout=400
export FSDP_CUDA_LIBRARY=$BIN/tests/libfsdp-opaque.so TEST_DEVICE=cuda

n=0 bad=0
for name in test_snapshot test_hooks test_precision test_keeping test_access; do
    n=$((n + 1))
    out=$("$BIN/tests/core/$name" 2>&1)
    rc=$?
    if [ $rc = 0 ] && [[ $out == *[1-9]..[1-9]* ]]; then
        echo "ok $n - $name: $(grep -c '^ok' <<<"$out") results"
    else
        echo "not ok $n - $name ended with $rc"
        grep -A 8 -e '^not ok' -e 'host touched' <<<"$out" | head -n 30 | sed 's/^/# /'
        bad=1
    fi
done
echo "1..$n"
exit $bad
