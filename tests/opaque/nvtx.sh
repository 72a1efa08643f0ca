#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# NVTX ranges of a run on a device, as a profiler hears them (nvtx_recorder.c): those of the trace, by unit
# and phase, nested, every one ended.
# run: timeout=300
cd "$TOP" || exit 1
recorder=$BIN/tests/opaque/libnvtx-recorder.so
if [ ! -f "$recorder" ]; then
    echo "1..0 # SKIP built without CUDA, which brings NVTX's headers"
    exit 0
fi
export NVTX_RECORD=$TEST_TMP/ranges
heard=$TEST_TMP/heard

n=0 bad=0
result() { # text, status
    n=$((n + 1))
    if [ "$2" = 0 ]; then
        echo "ok $n - $1"
    else
        echo "not ok $n - $1"
        { tail -n 5 "$TEST_TMP/out" && head -n 30 "$heard"; } | sed 's/^/# /'
        bad=1
    fi
}
within() { # a range, the range that it is in
    awk -v name="$1" -v parent="$2" '
        NF > 1 { at = $1; sub(/^[0-9]+ /, ""); open[at] = $0 }
        NF > 1 && $0 == name && at && open[at - 1] == parent { seen = 1 }
        END { exit !seen }' "$heard"
}
run() { # settings of the environment
    env "$@" FSDP_CUDA_LIBRARY="$BIN/tests/libfsdp-opaque.so" FSDP_CUDA_TUNE=off "$BIN/fsdp-launch" -n 2 \
        examples/llama-tiny.yaml fsdp.device=cuda train.threads=1 train.steps=2 train.eval_interval=1 \
        fsdp.activation_checkpointing=full checkpoint.path= log.trace="$TEST_TMP/trace.json" \
        log.trace_steps=1 "${settings[@]}" >"$TEST_TMP/out" 2>&1
}

settings=()
run NVTX_INJECTION64_PATH="$recorder"
result "a run with a profiler" $?
set -- "$NVTX_RECORD".*
[ $# = 2 ] && cmp -s "$@" && cp "$1" "$heard"
result "two ranks, which issue the same" $?
for phase in forward recompute backward; do
    grep -q "^[0-9]* $phase model.layers.1\$" "$heard"
    result "$phase of a unit" $?
done
within "forward model.layers.1" "forward (root)" && within "forward (root)" "micro-step 0"
result "a layer in the model, in a micro-step" $?
grep -q "^0 optimizer\$" "$heard" && grep -q "^[0-9]* gather model.layers.1\$" "$heard" &&
    within "reduce model.layers.1" "backward (root)" &&
    within "update model.layers.1" "optimizer"
result "what the engine issues, too" $?
awk 'NF > 1 { wrong += $1 != depth++ } NF == 1 { wrong += $1 != --depth } END { exit depth || wrong || NR < 100 }' \
    "$heard"
result "$(grep -c ' ' "$heard") ranges, all ended" $?
# The recorded step has no name that the ranges lack.
python3 - "$TEST_TMP/trace.json" "$heard" <<'END'
import json, sys
events = json.load(open(sys.argv[1]))["traceEvents"]
spans = {e["name"] for e in events if e["ph"] == "X" and not e["name"].startswith("step ")}
ranges = {line.split(" ", 1)[1].rstrip("\n") for line in open(sys.argv[2]) if " " in line}
print("# in the trace alone:", sorted(spans - ranges))
sys.exit(not spans or not spans <= ranges)
END
result "the names of the trace" $?

rm "$NVTX_RECORD".*
settings=(model.cuda_graphs=true)
run NVTX_INJECTION64_PATH="$recorder" && set -- "$NVTX_RECORD".* && cmp -s "$1" "$heard" &&
    grep -q 'graphs were captured and launched [1-9]' "$TEST_TMP/out"
result "the same of layers that are launched as graphs" $?
settings=()

rm "$NVTX_RECORD".*
run NVTX_INJECTION64_PATH= && ! ls "$NVTX_RECORD".* 2>/dev/null
result "nothing without one" $?
grep -qa NVTX_INJECTION64_PATH "$BIN/../lib/libfsdp-cuda.so"
result "the library for GPUs would hear one" $?
echo "1..$n"
exit $bad
