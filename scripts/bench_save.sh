#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What saving in the background costs, as ratios in one run; nothing here is a test.
#
#   scripts/bench_save.sh [GB]     a training state of GB (1), 2 ranks; on the disk under TMPDIR,
#                                  of which it takes twice that
#
#   hold       seconds that beginning a save holds the step loop, against a plain copy of as many
#              bytes from memory to memory by as many processes
#   steps      a step while a save is being written, against one without
#   on disk    from the beginning of a save until it is published and durable, against one at once
set -u
TOP=$(cd "$(dirname "$0")/.." && pwd)
BIN=${BIN:-$TOP/build/bin}
gb=${1:-1}
work=$(mktemp -d "${TMPDIR:-/var/tmp}/fsdp-bench.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1

die() {
    echo "bench: $*" >&2
    exit 1
}
median() {
    sort -g | awk '{x[NR] = $1} END {print NR % 2 ? x[(NR + 1) / 2] : (x[NR / 2] + x[NR / 2 + 1]) / 2}'
}
ratio() { awk -v a="$1" -v b="$2" 'BEGIN {printf "%.2f", a / b}'; }

# 12 bytes a parameter; 3.15 million a layer of width 512, 8.4 million in the embeddings
layers=$(awk -v gb="$gb" 'BEGIN {n = int((gb * 8.33e7 - 8.4e6) / 3.15e6 + 0.5); print n < 1 ? 1 : n}')
mkdir model
cat >model/config.json <<END
{"model_type": "llama", "vocab_size": 8192, "hidden_size": 512, "intermediate_size": 1365,
 "num_hidden_layers": $layers, "num_attention_heads": 8, "num_key_value_heads": 8,
 "hidden_act": "silu", "max_position_embeddings": 256, "initializer_range": 0.02,
 "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false}
END
head -c 2000000 /dev/urandom >text
cat >run.yaml <<END
model: {path: model, init: random}
data: {path: text, seq_len: 64, tokenizer: bytes}
train: {steps: 49, global_batch_size: 2, micro_batch_size: 1, threads: 1}
optim: {lr: 1e-4, schedule: constant}
checkpoint: {path: ck, interval: 16, keep: 1}
END
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1

# Seconds of steps, of 128 tokens each, with saving (1) or without (0); the first two are left out.
steps() { # metrics, 1 or 0
    awk -v want="$2" '
        {match($0, /"tokens_per_s": [0-9.e+]*/); rate = substr($0, RSTART + 16, RLENGTH - 16)
         if (NR > 2 && want == (/"saving": true/ ? 1 : 0)) print 128 / rate}' "$1"
}
held() { sed -n 's/.*"save_held_s": \([0-9.e-]*\).*/\1/p' "$1"; }
saved() { # logs: seconds of their saves
    cat "$@" | sed -n 's/^saved .* in \([0-9.]*\)s[,)].*/\1/p'
}
train() { # name, settings...
    local name=$1
    shift
    rm -rf ck
    "$BIN/fsdp-launch" -n 2 run.yaml log.metrics="$name.jsonl" "$@" >"$name.log" 2>&1 ||
        die "$(tail -n 5 "$name.log")"
    grep -o '"[^"]*": {"kind": .*"fingerprint": "[^"]*"' ck/step-00000049/manifest.json |
        sort >"$name.prints"
}

train before
nbytes=$(du -sb ck/step-00000049 | cut -f1)
copy=$("$BIN/tests/ckpt/bench_copy" $((nbytes >> 20)) 2)
train behind checkpoint.async=true
train after
cmp -s before.prints behind.prints && same=equal || same=DIFFERENT
hold=$(held behind.jsonl | median)
with=$(steps behind.jsonl 1 | median) without=$(steps behind.jsonl 0 | median)
background=$(grep 'in the background' behind.log | saved | median) at_once=$(saved before.log after.log | median)

row() { printf '%-46s %9.3f %9.3f %7s\n' "$1" "$2" "$3" "$(ratio "$2" "$3")"; }
printf 'a state of %d MB, 2 ranks on %d cores; fingerprints %s\n\n' $((nbytes / 1000000)) \
    "$(getconf _NPROCESSORS_ONLN)" "$same"
printf '%-46s %9s %9s %7s\n' '' seconds against ratio
row 'the step loop is held (a copy in memory)' "$hold" "$copy"
row "a step during a save, of $(steps behind.jsonl 1 | wc -l) (without)" "$with" "$without"
row 'a save in the background (at once)' "$background" "$at_once"
