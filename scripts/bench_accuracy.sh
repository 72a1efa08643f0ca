#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What products in 8 bits cost in loss: a Llama of 34 million parameters on the text of the demo, in
# bf16 and in 8 bits, from the same values on the same rows. Prints the mean training losses of the last
# tenth of the steps, and ends with 1 where they differ by 1 % or more. On 2 cores it takes an hour or so;
# it resumes where it was stopped.
#
#   scripts/bench_accuracy.sh [SETTING=VALUE...]
#
# ACCURACY_STEPS=N: steps (500). ACCURACY_RANKS=N: ranks (1). ACCURACY_DIR: where it works
# (build/accuracy). ACCURACY_KINDS: runs, of `bf16 e4m3 e5m2` (the first two).
set -u -o pipefail
cd "$(dirname "$0")/.." || exit 1
export PATH=${BIN:-$PWD/build/bin}:$PATH
dir=${ACCURACY_DIR:-build/accuracy}
steps=${ACCURACY_STEPS:-500}
kinds=${ACCURACY_KINDS:-bf16 e4m3}

die() {
    echo "bench_accuracy: $*" >&2
    exit 1
}

mkdir -p "$dir/model" || exit 1
[ -s "$dir/text" ] || bible -f gen1:1-rev22:21 </dev/null | sed 's/^[^ ]* //' >"$dir/text" ||
    die "no text: install bible-kjv-text, as scripts/demo.sh does"
# 33.6 million parameters in the layers, 0.3 in embedding and head.
cat >"$dir/model/config.json" <<END
{"model_type": "llama", "vocab_size": 256, "hidden_size": 512, "intermediate_size": 1536,
 "num_hidden_layers": 10, "num_attention_heads": 8, "num_key_value_heads": 8, "hidden_act": "silu",
 "max_position_embeddings": 256, "initializer_range": 0.02, "rms_norm_eps": 1e-5,
 "rope_theta": 10000.0, "tie_word_embeddings": false}
END
cat >"$dir/run.yaml" <<END
model: {path: $dir/model, init: random, seed: 1}
data: {path: $dir/text, seq_len: 256}
train: {steps: $steps, global_batch_size: 8, seed: 2}
optim: {lr: 1.0e-3, schedule: cosine, warmup_steps: 50}
fsdp: {param_dtype: bfloat16}
checkpoint: {interval: 50, keep: 1}
END

setting_of() {
    case $1 in
    bf16) echo model.linear_dtype=auto ;;
    e4m3) echo model.linear_dtype=float8_e4m3 ;;
    e5m2) echo model.linear_dtype=float8_e4m3 model.linear_grad_dtype=float8_e5m2 ;;
    *) die "$1: give bf16, e4m3 or e5m2" ;;
    esac
}
# Mean loss of the steps from $2 to $3; nothing where one is missing.
mean() {
    awk -v from="$2" -v to="$3" '
        match($0, /"step": [0-9]+/) { step = substr($0, RSTART + 8, RLENGTH - 8) + 0 }
        match($0, /"loss": [0-9.e+-]+/) { loss[step] = substr($0, RSTART + 8, RLENGTH - 8) + 0 }
        END {
            for (i = from; i <= to; i++) { if (!(i in loss)) exit; sum += loss[i] }
            printf "%.5f", sum / (to - from + 1)
        }' "$1"
}

for kind in $kinds; do
    echo "$kind: $steps steps ..."
    # shellcheck disable=SC2046 # words
    fsdp-launch -n "${ACCURACY_RANKS:-1}" "$dir/run.yaml" $(setting_of "$kind") log.metrics="$dir/$kind.jsonl" \
        checkpoint.path="$dir/$kind" "$@" >"$dir/$kind.log" 2>&1 || die "$kind: $(tail -n 3 "$dir/$kind.log")"
done

printf '\n| steps |'
for kind in $kinds; do printf ' %s |' "$kind"; done
printf '\n| --- |'
for kind in $kinds; do printf ' --- |'; done
echo
tenth=$((steps / 10 > 0 ? steps / 10 : 1))
for part in 1 2 5 10; do
    to=$((tenth * part)) && from=$((to - tenth + 1))
    printf '| %d to %d |' $from $to
    for kind in $kinds; do printf ' %s |' "$(mean "$dir/$kind.jsonl" $from $to)"; done
    echo
done
first=${kinds%% *} status=0
base=$(mean "$dir/$first.jsonl" $((9 * tenth + 1)) $((10 * tenth)))
[ -n "$base" ] || die "$first: the metrics lack steps"
for kind in ${kinds#"$first"}; do
    awk -v a="$(mean "$dir/$kind.jsonl" $((9 * tenth + 1)) $((10 * tenth)))" -v b="$base" -v kind="$kind" -v first="$first" '
        BEGIN { part = (a - b) / b; printf "%s: %+.2f %% of the loss of %s\n", kind, 100 * part, first
                exit !(a != "" && part < 0.01 && part > -0.01) }' || status=1
done
exit $status
