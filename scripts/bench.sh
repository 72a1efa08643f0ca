#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Benchmarks, as ratios against another program in the same run. Nothing here is a test.
#
#   scripts/bench.sh merge [GB]   ckpt-merge of a checkpoint of GB (2) against cp of the same bytes
#   scripts/bench.sh comm         bandwidth of the communication backends
#   scripts/bench.sh llama        a training step of one process
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

case ${1:-} in
merge) merge "${2:-2}" ;;
comm) "$BIN/tests/comm/bench_comm" ;;
llama) "$BIN/tests/models/bench_llama" ;;
*) sed -n '3,8s/^# \{0,1\}//p' "$0" && exit 2 ;;
esac
