#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Training speed and memory on one GPU, compared with PyTorch's, on a machine as check_gpu.sh's:
#
#   scripts/bench_gpu.sh [--dry-run] [PART...]       (default: all parts, in this order)
#
#   gpt2-124m   T 1024, 32 rows
#   llama-1b    T 4096, 4 rows, moments in float32
#   llama-3b    T 4096, 2 rows, moments in float32 (fits 80 GB)
#   llama-8b    T 4096, 2 rows, moments in bfloat16 (an H200: 80 GB are too few)
#   kernels     each operator at the 8B model's shapes, compared with the time its bytes or products take
#
# PyTorch runs twice in each: FSDP2 with compiled blocks, and the whole model compiled; fused AdamW,
# cuDNN's or flash attention, the same batch, recomputation and types. Each part runs alone and takes
# less than 8 minutes. Results are added to docs/results/DATE-gpu-bench.txt and .json. STEPS=25, BATCH=N
# and SIDES=libfsdp,fsdp2,plain choose others. --dry-run runs small models on the CPU instead, and writes
# no results.
set -u -o pipefail
cd "$(dirname "$0")/.." || exit 2
. scripts/gpu_env.sh

dry=
parts=()
for arg; do
    case $arg in
    --dry-run) dry=1 ;;
    gpt2-124m | llama-1b | llama-3b | llama-8b | kernels) parts+=("$arg") ;;
    *) sed -n '3,20s/^# \{0,1\}//p' "$0" && exit 2 ;;
    esac
done
[ ${#parts[@]} -gt 0 ] || parts=(gpt2-124m llama-1b llama-3b llama-8b kernels)

BIN=$PWD/build/bin
work=$PWD/build/gpu-bench
nfailed=0
mkdir -p "$work"
have_all || [ -n "$dry" ] || use_pack
[ -n "$dry" ] || use_cuda
python_of
[ -n "$PYTHON" ] || [ "${parts[*]}" = kernels ] || die "no Python with PyTorch: set TORCH_PYTHON"
table= json=
[ -x "$BIN/fsdp-launch" ] || die "nothing is built: scripts/check_gpu.sh build"
if [ -z "$dry" ]; then
    nvidia-smi -L >/dev/null 2>&1 || die "nvidia-smi shows no GPU; --dry-run runs small models on the CPU"
    result_open gpu-bench
fi

small=()
[ -z "$dry" ] || small=(--tiny --eager --steps 4 --warmup 1)

part_model() { # name
    "$PYTHON" scripts/bench_gpu.py bench --model "$1" --bin "$BIN" --work "$work" --steps "${STEPS:-25}" \
        ${BATCH:+--batch "$BATCH"} ${SIDES:+--sides "$SIDES"} ${small[@]+"${small[@]}"} | tee "$work/$1.log"
    keep "$1" $?
}

part_kernels() {
    "$BIN/tests/gpu/bench_kernels" ${dry:+cpu small} | tee "$work/kernels.log"
    keep kernels $?
}

# What is for people is printed; the last line, JSON, goes where JSON is.
keep() { # part, status
    [ "$2" = 0 ] || nfailed=$((nfailed + 1))
    [ -z "$dry" ] || return 0
    grep -v '^{' "$work/$1.log" >>"$table"
    grep '^{' "$work/$1.log" >>"$json"
}

for part in "${parts[@]}"; do
    say "== $part"
    begin=$SECONDS
    case $part in
    kernels) part_kernels ;;
    *) part_model "$part" ;;
    esac
    say "== $part: $((SECONDS - begin)) s"
done
[ $nfailed = 0 ] || die "$nfailed of ${#parts[@]} parts did not complete"
