#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What types of few bits cost in loss: a Llama of 34 million parameters on the text of the demo, 500 steps of 4 rows of
# 256 tokens. For each seed all kinds start from the same values and read the same rows. Prints the mean training loss of
# the last tenth of the steps, by kind and seed, and ends with 1 where 8 bits differ from bf16 by 1 % or more.
# A run takes 20 to 30 minutes on 2 cores. What is complete is kept, and what was stopped is resumed.
#
#   scripts/bench_accuracy.sh [SETTING=VALUE...]
#
# ACCURACY_KINDS: what is compared (fp32 bf16 e4m3; also e5m2 moments adamw8bit none small smallest).
# ACCURACY_SEEDS: of values and rows (1 2 3). ACCURACY_STEPS=N (500). ACCURACY_RANKS=N (1). ACCURACY_DIR: where it
# works (build/accuracy). ACCURACY_JSON: where the losses of all complete runs are written (DIR/accuracy.json).
# ACCURACY_FROM: such a file, whose runs are not repeated (docs/results/accuracy.json; with an empty name all are).
# ACCURACY_THREADS: of a rank (all cores); with other ones the rounding of sums differs.
set -u -o pipefail
cd "$(dirname "$0")/.." || exit 1
export PATH=${BIN:-$PWD/build/bin}:$PATH
dir=${ACCURACY_DIR:-build/accuracy}
steps=${ACCURACY_STEPS:-500}
kinds=${ACCURACY_KINDS:-fp32 bf16 e4m3}
seeds=${ACCURACY_SEEDS:-1 2 3}
json=${ACCURACY_JSON:-$dir/accuracy.json}
recorded=${ACCURACY_FROM-docs/results/accuracy.json}

die() {
    echo "bench_accuracy: $*" >&2
    exit 1
}

settings_of() {
    case $1 in
    fp32) echo fsdp.param_dtype=float32 ;;
    bf16) echo fsdp.param_dtype=bfloat16 ;;
    e4m3) echo fsdp.param_dtype=bfloat16 model.linear_dtype=float8_e4m3 ;;
    e5m2) echo fsdp.param_dtype=bfloat16 model.linear_dtype=float8_e4m3 model.linear_grad_dtype=float8_e5m2 ;;
    moments) echo fsdp.param_dtype=bfloat16 optim.moment_dtype=bfloat16 ;;
    adamw8bit) echo fsdp.param_dtype=bfloat16 optim.name=adamw8bit ;;
    none) echo fsdp.param_dtype=bfloat16 optim.master=none ;;
    small) echo fsdp.param_dtype=bfloat16 optim.master=none optim.moment_dtype=bfloat16 fsdp.grad_dtype=bfloat16 ;;
    smallest) echo fsdp.param_dtype=bfloat16 optim.master=none optim.name=adamw8bit fsdp.grad_dtype=bfloat16 ;;
    *) die "$1: give fp32, bf16, e4m3, e5m2, moments, adamw8bit, none, small or smallest" ;;
    esac
}

# A complete run is two lines of JSON, in DIR/KIND-SEED.run: what it was, and its losses.
name_run() { # kind, seed, settings
    printf '{"kind": "%s", "seed": %d, "steps": %d, "settings": "%s"' "$1" "$2" "$steps" "$3"
}

# Both lines of a run of the file of recorded ones. Nothing if it is not there.
recorded_run() { # what name_run gives
    grep -sF -A 1 -e "$1" "$recorded" | sed 's/^  //; s/},$/}/'
}

# The loss of each step of a run's metrics, in order, with commas; of a step that was repeated, the last. Nothing if one
# is missing.
losses() {
    awk -v steps="$steps" '
        match($0, /"step": [0-9]+/) { step = substr($0, RSTART + 8, RLENGTH - 8) + 0 }
        match($0, /"loss": [0-9.e+-]+/) { loss[step] = substr($0, RSTART + 8, RLENGTH - 8) }
        END {
            for (i = 1; i <= steps; i++) if (!(i in loss)) exit
            for (i = 1; i <= steps; i++) printf "%.4f%s", loss[i], (i < steps ? ", " : "")
        }' "$1" 2>/dev/null
}

mean() { # run, from, to
    sed -n '2s/[^0-9.,]//gp' "$dir/$1.run" | awk -F , -v from="$2" -v to="$3" '
        { for (i = from; i <= to; i++) sum += $i; printf "%.5f", sum / (to - from + 1) }'
}

train() { # kind, seed, settings...
    local run=$1-$2 settings name values
    settings="$(settings_of "$1") ${*:3}" || exit 1
    settings=${settings% }
    name=$(name_run "$1" "$2" "$settings")
    grep -qsF -e "$name" "$dir/$run.run" && return
    recorded_run "$name" >"$dir/$run.run"
    [ -s "$dir/$run.run" ] && return
    rm -f "$dir/$run.run"
    [ "$name" = "$(cat "$dir/$run.name" 2>/dev/null)" ] || rm -rf "${dir:?}/$run" "$dir/$run".*
    echo "$name" >"$dir/$run.name"
    echo "$run: $steps steps ..."
    # shellcheck disable=SC2046 # words
    fsdp-launch -n "${ACCURACY_RANKS:-1}" "$dir/run.yaml" $(settings_of "$1") model.seed="$2" train.seed="$2" \
        log.metrics="$dir/$run.jsonl" checkpoint.path="$dir/$run" "${@:3}" >"$dir/$run.log" 2>&1 ||
        die "$run: $(tail -n 3 "$dir/$run.log")"
    values=$(losses "$dir/$run.jsonl")
    [ "$values" ] || die "$run: $dir/$run.jsonl lacks steps"
    printf '%s, "version": "%s",\n "losses": [%s]}\n' "$name" "$(fsdp-launch --version | head -n 1)" "$values" \
        >"$dir/$run.run"
    rm -rf "${dir:?}/$run"
}

write_json() {
    echo '{'
    echo ' "model": "Llama, 34 million parameters, 10 layers of 512",'
    echo ' "text": "Bible, King James Version, bytes", "rows": 4, "row_tokens": 256,'
    echo ' "runs": ['
    awk 'NR > 1 { print last (last ~ /\}$/ ? "," : "") } { last = "  " $0 } END { print last }' "$dir"/*.run
    printf ' ]\n}\n'
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
model: {path: $dir/model, init: random}
data: {path: $dir/text, seq_len: 256}
train: {steps: $steps, global_batch_size: 4, threads: ${ACCURACY_THREADS:-auto}}
optim: {lr: 1.0e-3, schedule: cosine, warmup_steps: 50}
checkpoint: {interval: 100, keep: 1}
END

for kind in $kinds; do settings_of "$kind" >/dev/null || exit 1; done
for seed in $seeds; do
    for kind in $kinds; do
        train "$kind" "$seed" "$@"
        write_json >"$json" || exit 1
    done
done

from=$((steps - (steps >= 10 ? steps / 10 : 1) + 1)) status=0
base=bf16
case " $kinds " in *" bf16 "*) ;; *) base=${kinds%% *} ;; esac
printf '\n| seed |'
for kind in $kinds; do printf ' %s |' "$kind"; done
printf '\n| --- |'
for kind in $kinds; do printf ' --- |'; done
echo
for seed in $seeds; do
    printf '| %s |' "$seed"
    for kind in $kinds; do
        awk -v loss="$(mean "$kind-$seed" $from "$steps")" -v of="$(mean "$base-$seed" $from "$steps")" \
            -v same="$([ "$kind" = "$base" ] && echo 1)" \
            'BEGIN { printf " %.4f", loss; if (!same) printf " (%+.2f %%)", 100 * (loss - of) / of; printf " |" }'
        case $kind in e4m3 | e5m2)
            awk -v a="$(mean "$kind-$seed" $from "$steps")" -v b="$(mean "$base-$seed" $from "$steps")" \
                'BEGIN { exit !(a / b < 1.01 && a / b > 0.99) }' || status=1
            ;;
        esac
    done
    echo
done
echo
echo "mean losses of steps $from to $steps; in brackets the difference from $base with the same seed"
echo "losses of all steps: $json"
[ $status = 0 ] || echo "bench_accuracy: 8 bits differ from $base by 1 % or more"
exit $status
