#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Benchmarks, as ratios against another program in the same run. Nothing here is a test.
#
#   scripts/bench.sh merge [GB]   ckpt-merge of a checkpoint of GB (2) against cp of the same bytes
#   scripts/bench.sh save [GB]    saving a state of GB (1) in the background against saving at once
#   scripts/bench.sh offload [DIR] a training step with the optimizer's state in host memory, and in files in
#                                 DIR (a temporary folder), against one that keeps it where it computes
#   scripts/bench.sh comm         bandwidth of the communication backends
#   scripts/bench.sh gemm         rates of matrix products on one core, in fp32 and in bf16
#   scripts/bench.sh llama        a training step of one process, and where it goes
#   scripts/bench.sh families [F...]  a training step of each model family, or of some, and where it goes
#   scripts/bench.sh torch [R]    training steps against PyTorch, in R (3) rounds (docs/results/benchmarks.md)
#   scripts/bench.sh tokens [R]   text to ids and learning a vocabulary on one core against tokenizers and
#                                 tiktoken, best of R (5) rounds
#   scripts/bench.sh slurm [R...] from srun to the first step on R (2 4 8 16 32 64) ranks, next to mpirun
set -u
TOP=$(cd "$(dirname "$0")/.." && pwd)
BIN=${BIN:-$TOP/build/bin}
cd "$TOP" || exit 1

die() {
    echo "bench: $*" >&2
    exit 1
}

# A command's seconds and peak memory in MiB, by GNU time; its output is shown only if it fails.
measure() {
    local out
    out=$({ /usr/bin/time -f 'TIME %e %M' "$@"; } 2>&1) || die "failed: $*"$'\n'"$out"
    awk '/^TIME/ {printf "%.2f %.0f\n", $2, $3 / 1024}' <<<"$out"
}

# Written pages count for both: nobody wins by leaving work to the kernel.
drop() {
    sync
    echo 3 2>/dev/null >/proc/sys/vm/drop_caches || true
}

merge() {
    local gb=${1:-2} layers
    work=$(mktemp -d "${TMPDIR:-/tmp}/fsdp-bench.XXXXXX") || exit 1
    trap 'rm -rf "$work"' EXIT
    # 50.3 million parameters a layer of width 2048, 262 million in both embeddings of 64000 rows
    layers=$(awk -v gb="$gb" 'BEGIN {n = int((gb * 2.5e8 - 2.62e8) / 4.9e7) + 1; print n < 1 ? 1 : n}')
    mkdir "$work/model"
    cat >"$work/model/config.json" <<END
{"model_type": "llama", "vocab_size": 64000, "hidden_size": 2048, "intermediate_size": 5632,
 "num_hidden_layers": $layers, "num_attention_heads": 16, "num_key_value_heads": 16,
 "hidden_act": "silu", "max_position_embeddings": 64, "initializer_range": 0.02,
 "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false}
END
    cat >"$work/run.yaml" <<END
model: {path: $work/model, init: random}
data: {seq_len: 16}
train: {steps: 0, global_batch_size: 2, micro_batch_size: 1}
checkpoint: {path: $work/checkpoints}
END
    echo "initial state of a model of about $gb GB, 2 ranks FULL_SHARD (train.steps: 0) ..."
    "$BIN/fsdp-launch" -n 2 "$work/run.yaml" >"$work/log" 2>&1 || die "$(tail -n 5 "$work/log")"
    local src=$work/checkpoints/step-00000000 bytes s m cs cm ratio round
    bytes=$(cat "$src"/model/*.safetensors | wc -c)
    printf '%-34s %9s %9s %12s\n' "$((bytes / 1000000)) MB, cold cache, with sync" seconds 'peak MiB' 'x of cp'
    for round in 1 2 3; do
        drop
        read -r cs cm <<<"$(measure sh -c "cp -r '$src/model' '$work/copy' && sync -f '$work/copy'")"
        rm -rf "$work/copy"
        drop
        read -r s m <<<"$(measure "$BIN/ckpt-merge" "$src" -o "$work/full.safetensors")"
        rm -f "$work/full.safetensors"
        ratio=$(awk -v a="$s" -v b="$cs" 'BEGIN {printf "%.2f", a / b}')
        printf '%-34s %9s %9s %12s\n' "round $round: cp" "$cs" "$cm" 1.00
        printf '%-34s %9s %9s %12s\n' "round $round: ckpt-merge" "$s" "$m" "$ratio"
    done
}

# Median seconds of a step, and the peak MiB of the largest rank.
ours() { # ranks batch seq dtype steps
    local out
    cat >"$work/run.yaml" <<END
model: {path: $work/model}
data: {path: $work/$3.u16, format: u16, layout: rows, seq_len: $3}
train: {steps: $(($5 + 2)), global_batch_size: $(($1 * $2)), micro_batch_size: $2, threads: 1}
optim: {lr: 3e-4, schedule: constant, decay: all}
fsdp: {param_dtype: $4}
log: {metrics: $work/metrics}
END
    rm -f "$work/metrics"
    out=$({ /usr/bin/time -f 'TIME %M' "$BIN/fsdp-launch" -n "$1" "$work/run.yaml"; } 2>&1) ||
        die "failed: $out"
    awk '/^TIME/ {print $2 / 1024}' <<<"$out" >"$work/mib"
    sed -n 's/.*"loss": *\([0-9.]*\).*"tokens_per_s": *\([0-9.e+]*\).*/\1 \2/p' "$work/metrics" |
        awk -v tokens=$(($1 * $2 * $3)) -v mib="$(cat "$work/mib")" '
            NR == 1 {first = $1} {last = $1} NR > 2 {s[++n] = tokens / $2}
            END {for (i = 1; i <= n; i++) for (j = i + 1; j <= n; j++)
                     if (s[j] < s[i]) {t = s[i]; s[i] = s[j]; s[j] = t}
                 m = n % 2 ? s[(n + 1) / 2] : (s[n / 2] + s[n / 2 + 1]) / 2
                 printf "%.4f %.0f %.4f %.4f\n", m, mib, first, last}'
}

theirs() { # ranks batch seq dtype steps
    # Where PyTorch has no fast bf16 products a step takes a minute: then that one is the figure.
    # gloo sometimes dies while a process group is destroyed: what was printed before is complete.
    local figures rc
    figures=$("$TORCH_PYTHON" scripts/bench_torch.py --ranks "$1" --batch "$2" --seq "$3" --dtype "$4" \
        --steps "$5" --model "$work/model" --tokens "$work/$3.u16" --seconds 40)
    rc=$?
    grep -qxE '[0-9.]+( [0-9.]+){3}' <<<"$figures" || die "PyTorch failed with status $rc"
    [ $rc = 0 ] || echo "PyTorch ended with status $rc after it had printed its figures" >&2
    echo "$figures"
}

median() {
    sort -g | awk '{x[NR] = $1} END {print NR % 2 ? x[(NR + 1) / 2] : (x[NR / 2] + x[NR / 2 + 1]) / 2}'
}

# The two take turns; each figure is the median of the rounds.
against_torch() { # name ranks batch seq dtype steps
    local name=$1 round
    shift
    rm -f "$work"/*.rounds
    for ((round = 0; round < rounds; round++)); do
        ours "$@" >>"$work/ours.rounds"
        theirs "$@" >>"$work/theirs.rounds"
    done
    local s ts m tm loss
    s=$(cut -d' ' -f1 "$work/ours.rounds" | median) ts=$(cut -d' ' -f1 "$work/theirs.rounds" | median)
    m=$(cut -d' ' -f2 "$work/ours.rounds" | median) tm=$(cut -d' ' -f2 "$work/theirs.rounds" | median)
    loss="$(head -n 1 "$work/ours.rounds" | cut -d' ' -f3) $(head -n 1 "$work/theirs.rounds" | cut -d' ' -f3)"
    awk -v name="$name" -v s="$s" -v ts="$ts" -v m="$m" -v tm="$tm" -v loss="$loss" '
        BEGIN {split(loss, l, " ")
               printf "%-38s %8.3f %8.3f %7.2f x %6d %6d   %s %s\n", name, s, ts, ts / s, m, tm, l[1], l[2]}'
}

make_model() {
    mkdir "$work/random"
    cat >"$work/random/config.json" <<END
{"model_type": "llama", "vocab_size": 8192, "hidden_size": 512, "intermediate_size": 1408,
 "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 8,
 "hidden_act": "silu", "max_position_embeddings": 256, "initializer_range": 0.02,
 "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false}
END
    "$TORCH_PYTHON" - "$work" <<'END' || die "cannot write tokens"
import sys, numpy as np
for seq in (64, 256):
    tokens = np.random.default_rng(seq).integers(0, 8192, (512, seq + 1), dtype=np.uint16)
    tokens.tofile(f"{sys.argv[1]}/{seq}.u16")
END
    cat >"$work/init.yaml" <<END
model: {path: $work/random, init: random}
data: {path: $work/64.u16, format: u16, layout: rows, seq_len: 64}
train: {steps: 0, global_batch_size: 1}
checkpoint: {path: $work/checkpoints}
END
    "$BIN/fsdp-launch" "$work/init.yaml" >"$work/log" 2>&1 &&
        "$BIN/ckpt-merge" "$work/checkpoints/step-00000000" -o "$work/model" >>"$work/log" 2>&1 ||
        die "$(tail -n 5 "$work/log")"
}

against_pytorch() {
    rounds=${1:-3}
    # A kernel chosen by hand is not what either side would run.
    unset OPENBLAS_CORETYPE
    export OMP_NUM_THREADS=1
    work=$(mktemp -d "${TMPDIR:-/tmp}/fsdp-bench.XXXXXX") || exit 1
    trap 'rm -rf "$work"' EXIT
    make_model
    "$TORCH_PYTHON" -c 'import torch, re
blas = re.search(r"BLAS_INFO=(\w+)", torch.__config__.show())
print("PyTorch", torch.__version__, "with", blas and blas[1], "and", torch.backends.cpu.get_cpu_capability())'
    "$BIN/tests/models/bench_llama" steps=3 threads=1 | grep -v '^step [-0-9]'
    printf '\n%-38s %8s %8s %9s %6s %6s   %s\n' "seconds a step, one thread a rank" ours PyTorch ratio \
        MiB 'MiB' 'first loss of each'
    against_torch "2 ranks FULL_SHARD fp32, 4 x 256" 2 4 256 float32 5
    against_torch "2 ranks FULL_SHARD fp32, 1 x 64" 2 1 64 float32 15
    against_torch "2 ranks FULL_SHARD bf16, 4 x 256" 2 4 256 bfloat16 5
    against_torch "1 process fp32, 4 x 256" 1 4 256 float32 5
}

# 26 million parameters in 8 layers; each step reads and writes 12 bytes of each, and computes on few tokens.
offload() { # folder
    local round name s files
    local -A settings=([none]= [memory]=fsdp.offload=optimizer) seconds=()
    work=$(mktemp -d "${TMPDIR:-/tmp}/fsdp-bench.XXXXXX") || exit 1
    trap 'rm -rf "$work"' EXIT
    mkdir "$work/model" "$work/disk"
    files=${1:-$work/disk}
    settings[files]="fsdp.offload=optimizer fsdp.offload_dir=$files"
    cat >"$work/model/config.json" <<END
{"model_type": "llama", "vocab_size": 256, "hidden_size": 512, "intermediate_size": 1408,
 "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 8,
 "hidden_act": "silu", "max_position_embeddings": 64, "initializer_range": 0.02,
 "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false}
END
    cat >"$work/run.yaml" <<END
model: {path: $work/model, init: random}
data: {path: $work/tokens.u16, format: u16, layout: rows, seq_len: 64}
train: {steps: 7, global_batch_size: 8, micro_batch_size: 8}
END
    perl -e 'srand 1; print pack("v*", map {int rand 256} 1 .. 65 * 256)' >"$work/tokens.u16" || die "perl is missing"
    for round in 1 2 3; do
        for name in none memory files; do
            # shellcheck disable=SC2086
            "$BIN/fsdp-launch" -n 1 "$work/run.yaml" ${settings[$name]} log.metrics="$work/$name.$round" \
                >"$work/log" 2>&1 || die "$(tail -n 5 "$work/log")"
            s=$(sed -n 's/.*"tokens_per_s": *\([0-9.e+]*\).*/\1/p' "$work/$name.$round" | tail -n +3 |
                awk '{print 512 / $1}' | median)
            seconds[$name]+="$s "
        done
    done
    printf '%-44s %9s %8s\n' 'a step of 512 tokens, 26 million parameters' seconds 'x of 1'
    s=$(tr ' ' '\n' <<<"${seconds[none]}" | grep . | median)
    for name in none memory files; do
        tr ' ' '\n' <<<"${seconds[$name]}" | grep . | median | awk -v base="$s" -v name="$name" '
            BEGIN {text["none"] = "state where it computes"; text["memory"] = "offloaded to host memory"
                   text["files"] = "offloaded to files"}
            {printf "%-44s %9.3f %8.2f\n", text[name], $1, $1 / base}'
    done
}

case ${1:-} in
merge) merge "${2:-2}" ;;
save) scripts/bench_save.sh "${2:-1}" ;;
offload) offload "${2:-}" ;;
comm) "$BIN/tests/comm/bench_comm" ;;
slurm) exec scripts/bench_slurm.sh "${@:2}" ;;
gemm) "$BIN/tests/models/bench_gemm" ;;
llama) "$BIN/tests/models/bench_llama" ;;
families) scripts/bench_families.sh "${@:2}" ;;
torch)
    [ -n "${TORCH_PYTHON:-}" ] || exec scripts/with_python.sh torch "$0" "$@"
    against_pytorch "${2:-3}"
    ;;
tokens) scripts/bench_tokens.sh "${2:-5}" ;;
*) sed -n '3,17s/^# \{0,1\}//p' "$0" && exit 2 ;;
esac
