#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What must hold on a GPU, on a machine with CUDA, NCCL, cuDNN and PyTorch and no network:
#
#   scripts/check_gpu.sh [--dry-run] [PART...]       (default: all parts, in this order)
#
#   build       builds; under 3 minutes on 16 cores
#   device      the engine's arithmetic, lanes and events on the GPU, against fp64
#   nn          the models' operators on the GPU, against fp64; in 16-bit types, with cuDNN's attention
#   comm        the communicators' suite on NCCL: 1 to 4 ranks on one GPU
#   parity      losses of GPU and CPU, in float32 and bfloat16; logits of fsdp-generate
#   resume      a run that was interrupted ends with the bits of one that was not
#   memory      what the GPU holds besides CUDA's own is what was planned, and libraries' workspaces
#   strategies  2 and 4 ranks, every sharding strategy, against one rank
#   settings    what changes when, where or in which type a step computes: against the run without it, or the CPU
#   families    a small model of each family, in float32 and bfloat16, GPU and CPU
#   torch       200 steps of a small Llama in bfloat16, ours and PyTorch's
#   sanitizer   compute-sanitizer on the kernels: memory, races
#
# Each part runs alone and is stopped, and fails, after 8 minutes; all but build need a GPU. Without build they should
# take 10 minutes together. Results are added to docs/results/DATE-gpu-check.{txt,json}. --dry-run says what would run.
set -u -o pipefail
cd "$(dirname "$0")/.." || exit 2
. scripts/gpu_env.sh
. scripts/family_configs.sh

dry=
parts=()
for arg; do
    case $arg in
    --dry-run) dry=1 ;;
    build | device | nn | comm | parity | resume | memory | strategies | settings | families | torch | sanitizer) parts+=("$arg") ;;
    *) sed -n '3,21s/^# \{0,1\}//p' "$0" && exit 2 ;;
    esac
done
[ ${#parts[@]} -gt 0 ] || parts=(build device nn comm parity resume memory strategies settings families torch sanitizer)

BIN=${BIN:-$PWD/build/bin}
work=$PWD/build/gpu-check
nfailed=0
PART_S=${PART_S:-480} BUILD_S=180 GOAL_S=600 begin=$SECONDS
export FSDP_TEST_GPU=1
export FSDP_CUDA_TUNE=$work/tune # one choice for all runs, which are compared

# Runs a command for as long as is left of its part's time.
within() {
    local left=$((PART_S - (SECONDS - begin)))
    [ $left -gt 0 ] || return 124
    timeout -k 10 $left "$@"
}

# Runs a command, or shows it.
try() {
    if [ -n "$dry" ]; then
        printf 'would run:'
        printf ' %q' "$@"
        printf '\n'
        return 0
    fi
    within "$@"
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
    within env TOP="$PWD" BIN="$BIN" tests/run -j 1 -t 400 "$@" | tee "$log"
    status=$?
    last=$(tail -n 1 "$log")
    verdict "$part" "$*" $status "$last"
}

part_build() {
    local status
    try make -j"$(nproc)" WITH_CUDA=1 WITH_NCCL=1 WITH_PMIX=0 WITH_DNNL=0 WITH_CURL=0 \
        ${CBLAS_LIBS:+CBLAS_LIBS="$CBLAS_LIBS" CBLAS_CFLAGS="$CBLAS_CFLAGS"} all tests
    status=$?
    [ $status != 0 ] || [ -n "$dry" ] || [ -e build/lib/libfsdp-cuda.so ] || status=1
    [ "$(nproc)" -lt 16 ] || [ $((SECONDS - begin)) -le $BUILD_S ] || status=1
    verdict build "make all tests" $status "$((SECONDS - begin)) s on $(nproc) cores (bound on 16: $BUILD_S s)"
}

part_device() { run_tests device tests/gpu/test_device.c; }
part_nn() { run_tests nn tests/gpu/test_nn.c tests/gpu/test_nn_dtypes.c tests/gpu/test_attention.c tests/gpu/test_dropout.c; }
part_comm() { run_tests comm tests/comm/test_conformance_nccl.c; }

# ---- training ---------------------------------------------------------------------------------------

# Losses of a run, one a line. The first settings are the script's, and more may follow. The data is the
# same for all: docs has the results, which grow meanwhile.
train() { # name, ranks, settings...
    local name=$1 ranks=$2
    shift 2
    local run=("$BIN/fsdp-launch" -n "$ranks" --ranks-per-gpu "$ranks"
        examples/llama-tiny.yaml data.path=libfsdp checkpoint.path= "log.metrics=$work/$name.jsonl" log.interval=1000
        train.eval_interval=0 optim.schedule=constant "$@")
    if [ -n "$dry" ]; then
        try "${run[@]}"
        return
    fi
    rm -f "$work/$name".{jsonl,losses}
    within "${run[@]}" >"$work/$name.log" 2>&1 || { tail -n 4 "$work/$name.log" >&2 && return 1; }
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

# The same of numbers round zero: the difference itself.
differ() { # part, what, bound, name, name
    local figures status
    [ -z "$dry" ] || return 0
    figures=$(paste "$work/$4.losses" "$work/$5.losses" 2>/dev/null | awk -v bound="$3" '
        {d = $1 - $2; d = d < 0 ? -d : d; if (!(d <= worst)) worst = d; n++}
        END {printf "%d numbers, greatest difference %.2e (bound %s)", n, worst, bound
             exit !(n > 1 && worst <= bound)}')
    status=$?
    verdict "$1" "$2" $status "$figures"
}

part_parity() {
    local dtype bound
    for dtype in float32 bfloat16; do
        bound=2e-4
        [ $dtype = float32 ] || bound=2e-2
        train "cpu-$dtype" 1 fsdp.device=cpu train.steps=50 fsdp.param_dtype=$dtype fsdp.output_dtype=$dtype
        train "gpu-$dtype" 1 fsdp.device=cuda train.steps=50 fsdp.param_dtype=$dtype
        compare parity "GPU against CPU, 50 steps, $dtype" $bound "gpu-$dtype" "cpu-$dtype"
    done
    for dtype in cpu cuda; do
        try "$BIN/fsdp-generate" --device $dtype --model tests/data/llama-tiny --logits \
            --tokens "$(seq -s , 1 60)" >"$work/generate-$dtype"
        [ -z "$dry" ] || cat "$work/generate-$dtype"
        tr ' ' '\n' <"$work/generate-$dtype" >"$work/logits-$dtype.losses"
    done
    differ parity "logits of fsdp-generate, GPU against CPU" 1e-3 logits-cuda logits-cpu
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

# ---- memory -----------------------------------------------------------------------------------------

MEMORY_BOUND=0.02

# MiB of the GPU in use, by whomever; the GPU of rank 0.
memory_used() {
    local gpu=${CUDA_VISIBLE_DEVICES:-0}
    nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits -i "${gpu%%,*}" 2>/dev/null | tr -dc 0-9
}

# Trains, and leaves in NAME.memory: bytes planned, of workspaces, and MiB that the GPU held at most
# beyond what it held before.
train_measured() { # name, settings...
    local name=$1 before now most=0 pid status
    if [ -n "$dry" ]; then
        train "$name" 1 "${@:2}"
        return
    fi
    rm -f "$work/$name.memory"
    before=$(memory_used)
    train "$name" 1 "${@:2}" &
    pid=$!
    while kill -0 $pid 2>/dev/null; do
        now=$(memory_used)
        [ "${now:-0}" -le $most ] || most=$now
        sleep 0.2
    done
    wait $pid
    status=$?
    sed -n 's/.*device memory: \([0-9]*\) bytes planned, \([0-9]*\) of workspaces.*/\1 \2/p' "$work/$name.log" |
        sed "s/\$/ $((most - ${before:-0}))/" >"$work/$name.memory"
    return $status
}

# CUDA's context, the code of kernels and the libraries' handles are what a small run holds beyond its
# plan; of a large run they are the same, and the rest must be its plan and the named workspaces.
judge_memory() { # file of the small run, of the large run
    cat "$1" "$2" 2>/dev/null | awk -v bound=$MEMORY_BOUND -v GB=1e9 '
        {want[NR] = $1 + $2; plan = $1; work = $2; got[NR] = $3 * 1048576; n += NF == 3}
        END {
            context = got[1] - want[1]; measured = got[2] - context
            off = want[2] > 0 ? (measured - want[2]) / want[2] : 1
            printf "planned %.3f GB and %.3f of workspaces, measured %.3f (%+.2f %%, bound %g %%); " \
                   "CUDA itself %.3f", plan / GB, work / GB, measured / GB, 100 * off, 100 * bound, context / GB
            exit !(n == 2 && NR == 2 && context > 0 && want[2] > 4 * want[1] && off <= bound && -off <= bound)
        }'
}

part_memory() {
    local status figures large=$work/large
    local both=(fsdp.device=cuda fsdp.param_dtype=bfloat16 data.seq_len=256)
    mkdir -p "$large"
    # A billion parameters, with heads as cuDNN takes them.
    sed -e 's/\("hidden_size": \)64/\12048/' -e 's/\("intermediate_size": \)176/\18192/' \
        -e 's/\("num_hidden_layers": \)2/\116/' -e 's/\("num_attention_heads": \)4/\132/' \
        -e 's/\("num_key_value_heads": \)2/\18/' -e 's/\("head_dim": \)16/\164/' \
        examples/llama-tiny/config.json >"$large/config.json"
    train_measured memory-small "${both[@]}" train.steps=1000 # long enough to be seen
    status=$?
    train_measured memory-large "${both[@]}" train.steps=20 "model.path=$large" || status=1
    [ -z "$dry" ] || return 0
    figures=$(judge_memory "$work/memory-small.memory" "$work/memory-large.memory") || status=1
    verdict memory "what the GPU holds against what was planned" $status "$figures"
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

# ---- settings ---------------------------------------------------------------------------------------

# The same run on GPU and CPU, at once.
on_both() { # name, ranks, settings...
    local pids=() pid device
    for device in cuda cpu; do
        train "$1-$device" "$2" fsdp.device=$device "${@:3}" &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do wait "$pid"; done
}

# Settings that only order or place the same arithmetic have the bits of the run without them, in float32.
same_bits() { # ranks, settings...
    local ranks=$1
    shift
    train moved "$ranks" fsdp.device=cuda train.steps=10 optim.clip_grad_norm=0 "$@"
    compare settings "$*, $ranks rank(s): the same bits" 0 moved "base-$ranks"
}

# Layers launched as CUDA graphs: the bits of the run without, in the type given, and graphs were launched.
by_graphs() { # ranks, settings...
    local ranks=$1 figures status
    shift
    train plain "$ranks" fsdp.device=cuda train.steps=10 "$@"
    train graphs "$ranks" fsdp.device=cuda train.steps=10 model.cuda_graphs=true "$@"
    compare settings "model.cuda_graphs=true $*, $ranks rank(s): the same bits" 0 graphs plain
    [ -z "$dry" ] || return 0
    figures=$(grep -m 1 -o 'model.cuda_graphs: .*' "$work/graphs.log")
    [[ $figures == *" launched "[1-9]* ]]
    status=$?
    verdict settings "model.cuda_graphs=true $*, $ranks rank(s): graphs were launched" $status "$figures"
}

# Settings that round otherwise, in bfloat16, as on the CPU.
near_cpu() { # ranks, bound, settings...
    local ranks=$1 bound=$2
    shift 2
    on_both near "$ranks" train.steps=10 fsdp.param_dtype=bfloat16 fsdp.output_dtype=bfloat16 "$@"
    compare settings "$*, $ranks rank(s), GPU against CPU" "$bound" near-cuda near-cpu
}

part_settings() {
    local ranks files=$work/files lines=$work/lines.jsonl
    mkdir -p "$files"
    awk 'length > 8 { gsub(/[\\"\t]/, " "); print "{\"text\": \"" $0 "\"}" }' libfsdp/core/*/*.c >"$lines"
    for ranks in 1 2; do
        train base-$ranks $ranks fsdp.device=cuda train.steps=10 optim.clip_grad_norm=0
        same_bits $ranks fsdp.update_at=forward
        same_bits $ranks fsdp.update_at=reduce
        same_bits $ranks fsdp.offload=optimizer
        same_bits $ranks fsdp.offload=params
        same_bits $ranks fsdp.offload=params "fsdp.offload_dir=$files"
        same_bits $ranks fsdp.activation_checkpointing=full
        same_bits $ranks fsdp.activation_checkpointing=selective
        same_bits $ranks fsdp.offload_activations=true fsdp.activation_checkpointing=full
        same_bits $ranks fsdp.offload_gradients=true
        by_graphs $ranks
        by_graphs $ranks train.micro_batch_size=2 fsdp.activation_checkpointing=full fsdp.param_dtype=bfloat16
    done
    near_cpu 1 2e-2 optim.master=split
    near_cpu 1 2e-2 optim.master=none
    near_cpu 1 2e-2 optim.moment_dtype=bfloat16 optim.ema_decay=0.9
    near_cpu 2 2e-2 optim.name=adamw8bit fsdp.grad_dtype=bfloat16
    near_cpu 1 2e-2 optim.name=lion optim.lr=3.0e-4
    near_cpu 1 2e-2 optim.name=schedulefree
    near_cpu 2 2e-2 optim.name=adafactor
    near_cpu 2 2e-2 optim.name=muon
    near_cpu 2 2e-2 fsdp.offload=optimizer fsdp.offload_gradients=true fsdp.offload_update=host
    near_cpu 1 2e-2 fsdp.offload=params "fsdp.offload_dir=$files" fsdp.offload_gradients=true fsdp.offload_update=host
    near_cpu 1 2e-2 model.linear_dtype=float8_e4m3
    near_cpu 1 2e-2 model.linear_dtype=float8_e4m3 model.linear_grad_dtype=float8_e5m2
    near_cpu 1 2e-2 model.linear_dtype=float8_e4m3 model.linear_scales=row
    near_cpu 1 2e-2 model.linear_dtype=float8_e4m3 model.linear_scales=block
    near_cpu 2 2e-2 fsdp.gather_dtype=float8_e4m3
    near_cpu 2 2e-2 fsdp.gather_dtype=float8_e4m3 model.linear_dtype=float8_e4m3
    near_cpu 1 2e-2 model.dropout=0.1
    near_cpu 1 5e-2 model.dropout=0.1 model.attention_dropout=fast # which drops others than the CPU
    near_cpu 1 2e-2 "data.path=$lines" "data.eval_path=$lines" data.eval_rows=16 data.format=jsonl
    near_cpu 2 2e-2 lora.r=8 lora.base=nf4 model.path=tests/data/llama-tiny model.init=pretrained
    near_cpu 1 2e-2 lora.r=8 lora.dora=true model.path=tests/data/llama-tiny model.init=pretrained
}

part_families() {
    local family at dtype bound
    for family in $FAMILIES; do
        at=$work/family-$family
        mkdir -p "$at"
        family_config "$family" 96 192 3 32 256 128 16 >"$at/config.json"
        for dtype in float32 bfloat16; do
            bound=2e-4
            [ $dtype = float32 ] || bound=2e-2
            on_both family 1 train.steps=5 model.path="$at" fsdp.param_dtype=$dtype fsdp.output_dtype=$dtype
            compare families "$family, $dtype, GPU against CPU" $bound family-cuda family-cpu
        done
    done
}

part_torch() {
    [ -n "${PYTHON:-}" ] || python_of
    try "${PYTHON:-python3}" scripts/bench_gpu.py losses --bin "$BIN" --work "$work" --steps 200 |
        tee "$work/torch.log"
    verdict torch "200 steps, bfloat16, against PyTorch" $? \
        "$([ -n "$dry" ] || tail -n 1 "$work/torch.log")"
}

# All at once: each takes minutes, and mostly of a core.
part_sanitizer() {
    local tool sanitizer program log status pids=() runs=()
    sanitizer=$(command -v compute-sanitizer || echo "${CUDA_HOME:-/usr/local/cuda}/bin/compute-sanitizer")
    for tool in memcheck racecheck; do
        for program in test_device test_attention test_nn; do
            log=$work/$tool-$program.log
            try "$sanitizer" --tool $tool --error-exitcode 9 "$BIN/tests/gpu/$program" >"$log" 2>&1 &
            pids+=($!) runs+=("$tool $program")
        done
    done
    for i in "${!pids[@]}"; do
        read -r tool program <<<"${runs[i]}"
        log=$work/$tool-$program.log
        wait "${pids[i]}"
        status=$?
        [ -z "$dry" ] || cat "$log"
        # Devices that a hypervisor hides from the sanitizer are no fault of the kernels.
        if [ $status != 0 ] && grep -q 'Device not supported' "$log"; then
            result sanitizer "$tool, $program" skipped "compute-sanitizer does not know this device"
        else
            verdict sanitizer "$tool, $program" $status "$(grep -o 'ERROR SUMMARY.*' "$log" | tail -n 1)"
        fi
    done
}

# ---- go ---------------------------------------------------------------------------------------------

needs() { [[ " ${parts[*]} " == *" $1 "* ]]; }

# What is missing for all parts, a line each; nothing where it is there.
missing() {
    local why="there is no nvidia-smi, and so no NVIDIA driver"
    ! command -v nvidia-smi >/dev/null || why="nvidia-smi shows no GPU"
    [ "${parts[*]}" = build ] || nvidia-smi -L >/dev/null 2>&1 || say "  a GPU: $why"
    needs build || [ -x "$BIN/fsdp-launch" ] || say "  what it runs: nothing is built (scripts/check_gpu.sh build)"
}

# The same for single parts: those will fail, and the others run.
missing_of_parts() {
    local home=${CUDA_HOME:-/usr/local/cuda} tool
    ! needs torch || [ -n "${PYTHON:-}" ] || say "  PyTorch, for torch: no Python with it (TORCH_PYTHON names one)"
    tool=$(command -v compute-sanitizer || echo "$home/bin/compute-sanitizer")
    ! needs sanitizer || [ -x "$tool" ] ||
        say "  compute-sanitizer, for sanitizer: it is neither in PATH nor in $home/bin"
}

mkdir -p "$work"
have_all || [ -n "$dry" ] || use_pack
[ -n "$dry" ] || use_cuda
if [ -z "$dry" ]; then
    lacking=$(missing)
    [ -z "$lacking" ] || die "this machine lacks what these parts need (${parts[*]}):
$lacking
--dry-run says what would run where it is there"
    lacking=$(missing_of_parts)
    [ -z "$lacking" ] || say "parts that will fail here, for what they lack:
$lacking"
    result_open gpu-check
fi
spent=0
for part in "${parts[@]}"; do
    say "== $part"
    begin=$SECONDS
    part_"$part"
    say "== $part: $((SECONDS - begin)) s"
    [ $((SECONDS - begin)) -lt $PART_S ] || verdict "$part" "the part's time" 1 "stopped after $PART_S s"
    [ "$part" = build ] || spent=$((spent + SECONDS - begin))
done
[ -n "$dry" ] || result total "parts that ran, but build: ${parts[*]}" - "$spent s (goal for all of them: $GOAL_S s)"
[ $nfailed = 0 ] || die "$nfailed failed"
