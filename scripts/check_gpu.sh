#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What must hold on a GPU, on a machine with CUDA, NCCL, cuDNN and PyTorch and no network:
#
#   scripts/check_gpu.sh [--dry-run] [PART...]       (default: all parts, in this order)
#
#   build       builds; under 3 minutes on 16 cores
#   device      the engine's arithmetic, lanes and events on the GPU, against fp64
#   nn          the models' operators on the GPU, against fp64
#   comm        the communicators' suite on NCCL: 1 to 4 ranks on one GPU
#   parity      training: losses of GPU and CPU, in float32 and bfloat16
#   resume      a run that was interrupted ends with the bits of one that was not
#   strategies  2 and 4 ranks, every sharding strategy, against one rank
#   torch       200 steps of a small Llama in bfloat16, ours and PyTorch's
#   sanitizer   compute-sanitizer on the kernels: memory, races
#
# Each part runs alone and takes less than 8 minutes; all but build need a GPU. Results are added to docs/results/DATE-gpu-check.txt
# and .json. --dry-run says what each part would run.
set -u -o pipefail
cd "$(dirname "$0")/.." || exit 2
. scripts/gpu_env.sh

dry=
parts=()
for arg; do
    case $arg in
    --dry-run) dry=1 ;;
    build | device | nn | comm | parity | resume | strategies | torch | sanitizer) parts+=("$arg") ;;
    *) sed -n '3,20s/^# \{0,1\}//p' "$0" && exit 2 ;;
    esac
done
[ ${#parts[@]} -gt 0 ] || parts=(build device nn comm parity resume strategies torch sanitizer)

BIN=$PWD/build/bin
work=$PWD/build/gpu-check
nfailed=0
export FSDP_TEST_GPU=1
export FSDP_CUDA_TUNE=$work/tune # one choice for all runs, which are compared

# Runs a command, or shows it.
try() {
    if [ -n "$dry" ]; then
        printf 'would run:'
        printf ' %q' "$@"
        printf '\n'
        return 0
    fi
    "$@"
}

# The status comes first and is taken before the figures are made: a command in an argument would
# replace it.
verdict() { # part, what, status, figures
    [ -z "$dry" ] || return 0
    local word=ok
    [ "$3" = 0 ] || { word=FAILED && nfailed=$((nfailed + 1)); }
    result "$1" "$2" "$word" "$4"
}

# ---- programs of tests/ -----------------------------------------------------------------------------

run_tests() { # part, tests...
    local part=$1 log=$work/$1.log status last
    shift
    if [ -n "$dry" ]; then
        try env TOP="$PWD" BIN="$BIN" tests/run -t 400 "$@"
        return
    fi
    TOP=$PWD tests/run -j 1 -t 400 "$@" | tee "$log"
    status=$?
    last=$(tail -n 1 "$log")
    verdict "$part" "$*" $status "$last"
}

part_build() {
    local begin=$SECONDS status
    try make -j"$(nproc)" WITH_CUDA=1 WITH_NCCL=1 WITH_PMIX=0 WITH_DNNL=0 WITH_CURL=0 \
        ${CBLAS_LIBS:+CBLAS_LIBS="$CBLAS_LIBS" CBLAS_CFLAGS="$CBLAS_CFLAGS"} all tests
    status=$?
    [ $status != 0 ] || [ -n "$dry" ] || [ -e build/lib/libfsdp-cuda.so ] || status=1
    verdict build "make all tests" $status "$((SECONDS - begin)) s on $(nproc) cores"
}

part_device() { run_tests device tests/gpu/test_device.c; }
part_nn() { run_tests nn tests/gpu/test_nn.c; }
part_comm() { run_tests comm tests/comm/test_conformance_nccl.c; }

# ---- training ---------------------------------------------------------------------------------------

# Losses of a run, one a line. The first settings are the script's, and more may follow.
train() { # name, ranks, settings...
    local name=$1 ranks=$2
    shift 2
    local run=("$BIN/fsdp-launch" -n "$ranks" --ranks-per-gpu "$ranks"
        examples/llama-tiny.yaml checkpoint.path= "log.metrics=$work/$name.jsonl" log.interval=1000
        train.eval_interval=0 optim.schedule=constant "$@")
    if [ -n "$dry" ]; then
        try "${run[@]}"
        return
    fi
    rm -f "$work/$name".{jsonl,losses}
    "${run[@]}" >"$work/$name.log" 2>&1 || { tail -n 4 "$work/$name.log" >&2 && return 1; }
    sed -n 's/.*"loss": *\([-0-9.e+]*\).*/\1/p' "$work/$name.jsonl" >"$work/$name.losses"
}

# The greatest relative difference of two runs' losses is at most the bound.
compare() { # part, what, bound, name, name
    local figures status
    [ -z "$dry" ] || return 0
    figures=$(paste "$work/$4.losses" "$work/$5.losses" 2>/dev/null | awk -v bound="$3" '
        {d = ($1 - $2) / $2; d = d < 0 ? -d : d; if (!(d <= worst)) worst = d; last = $1; n++}
        END {printf "%d steps, last loss %s, greatest difference %.2e (bound %s)", n, last, worst, bound
             exit !(n > 1 && worst <= bound)}')
    status=$?
    verdict "$1" "$2" $status "$figures"
}

part_parity() {
    local dtype bound
    for dtype in float32 bfloat16; do
        bound=2e-4
        [ $dtype = float32 ] || bound=2e-2
        train "cpu-$dtype" 1 fsdp.device=cpu train.steps=50 fsdp.param_dtype=$dtype
        train "gpu-$dtype" 1 fsdp.device=cuda train.steps=50 fsdp.param_dtype=$dtype
        compare parity "GPU against CPU, 50 steps, $dtype" $bound "gpu-$dtype" "cpu-$dtype"
    done
}

part_resume() {
    local at=$work/resume
    rm -rf "$at" && mkdir -p "$at"
    train whole 1 fsdp.device=cuda train.steps=20 checkpoint.path="$at/whole" checkpoint.interval=20
    train first 1 fsdp.device=cuda train.steps=10 checkpoint.path="$at/parts" checkpoint.interval=10
    train resumed 1 fsdp.device=cuda train.steps=20 checkpoint.path="$at/parts" checkpoint.interval=20
    try "$BIN/ckpt-diff" "$at/whole/step-00000020" "$at/parts/step-00000020"
    verdict resume "20 steps, and 10 + 10" $? "ckpt-diff of weights and moments"
    train two 2 fsdp.device=cuda train.steps=20 checkpoint.path="$at/two" checkpoint.interval=10
    try "$BIN/ckpt-verify" "$at/two/step-00000020"
    verdict resume "a checkpoint of 2 ranks" $? "ckpt-verify"
}

part_strategies() {
    local strategy ranks bound=2e-4
    train one 1 fsdp.device=cuda train.steps=20
    for ranks in 2 4; do
        for strategy in FULL_SHARD SHARD_GRAD_OP ZERO1 NO_SHARD; do
            train "$strategy-$ranks" $ranks fsdp.device=cuda train.steps=20 fsdp.sharding_strategy=$strategy
            compare strategies "$strategy, $ranks ranks, against one" $bound "$strategy-$ranks" one
        done
    done
    for strategy in HYBRID_SHARD HYBRID_SHARD_ZERO2; do
        train "$strategy" 4 fsdp.device=cuda train.steps=20 fsdp.sharding_strategy=$strategy fsdp.shard_size=2
        compare strategies "$strategy, 2 x 2 ranks, against one" $bound "$strategy" one
    done
    train prefetch 4 fsdp.device=cuda train.steps=20 fsdp.reshard_after_forward=2 fsdp.param_dtype=bfloat16
    train one-bf16 1 fsdp.device=cuda train.steps=20 fsdp.param_dtype=bfloat16
    compare strategies "reshard_after_forward=2, bfloat16, 4 ranks" 2e-2 prefetch one-bf16
}

part_torch() {
    [ -n "${PYTHON:-}" ] || python_of
    try "${PYTHON:-python3}" scripts/bench_gpu.py losses --bin "$BIN" --work "$work" --steps 200 |
        tee "$work/torch.log"
    verdict torch "200 steps, bfloat16, against PyTorch" $? \
        "$([ -n "$dry" ] || tail -n 1 "$work/torch.log")"
}

part_sanitizer() {
    local tool sanitizer program status
    sanitizer=$(command -v compute-sanitizer || echo "${CUDA_HOME:-/usr/local/cuda}/bin/compute-sanitizer")
    for tool in memcheck racecheck; do
        # Devices that a hypervisor hides from the sanitizer are no fault of the kernels.
        if [ -z "$dry" ] && ! "$sanitizer" --tool $tool "$BIN/tests/gpu/test_device" >"$work/$tool.log" 2>&1 &&
            grep -q 'Device not supported' "$work/$tool.log"; then
            result sanitizer "$tool" skipped "compute-sanitizer does not know this device"
            continue
        fi
        for program in test_device test_nn; do
            try "$sanitizer" --tool $tool --error-exitcode 9 "$BIN/tests/gpu/$program" >"$work/$tool.log" 2>&1
            status=$?
            [ -z "$dry" ] || cat "$work/$tool.log"
            verdict sanitizer "$tool, $program" $status \
                "$(grep -o 'ERROR SUMMARY.*' "$work/$tool.log" | tail -n 1)"
        done
    done
}

# ---- go ---------------------------------------------------------------------------------------------

mkdir -p "$work"
have_all || [ -n "$dry" ] || use_pack
[ -n "$dry" ] || use_cuda
if [ -z "$dry" ]; then
    [ "${parts[*]}" = build ] || nvidia-smi -L >/dev/null 2>&1 || die "nvidia-smi shows no GPU; --dry-run says what would run on one"
    result_open gpu-check
fi
for part in "${parts[@]}"; do
    say "== $part"
    begin=$SECONDS
    part_"$part"
    say "== $part: $((SECONDS - begin)) s"
done
[ $nfailed = 0 ] || die "$nfailed failed"
