#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The memory that accelerate and DeepSpeed estimate, that fsdp-plan plans, and that real runs on CPUs take. Writes a page
# in Markdown to standard output. Needs TORCH_PYTHON (transformers, accelerate); DeepSpeed is fetched.
set -u
top=$(cd "$(dirname "$0")/.." && pwd)
BIN=${BIN:-$top/build/bin}
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1

model() { # folder, width, ffn, layers, heads, key heads, vocabulary
    mkdir -p "$1"
    printf '{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": %d, "intermediate_size": %d,
 "num_hidden_layers": %d, "num_attention_heads": %d, "num_key_value_heads": %d, "vocab_size": %d,
 "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "tie_word_embeddings": false, "torch_dtype": "bfloat16"}\n' \
        "${@:2}" >"$1/config.json"
}
model llama-8b 4096 14336 32 32 8 128256
model llama-70b 8192 28672 80 64 8 128256
gb() { awk -v n="$1" 'BEGIN { n /= 1e9; printf n < 100 ? "%.3g" : "%.0f", n }'; }
peers() { "$top/scripts/with_deepspeed.sh" sh -c "\$DEEPSPEED_PYTHON '$top/scripts/estimators.py' $*" 2>/dev/null | tail -n 1; }
key() { python3 -c 'import json, sys; print(json.loads(sys.argv[1])[sys.argv[2]])' "$1" "$2"; }
ours() { # which: states or all; arguments of fsdp-plan
    "$BIN/fsdp-plan" "${@:2}" --json answer.json >/dev/null 2>&1
    python3 - "$1" <<'PY'
import json, sys
m = json.load(open("answer.json"))["memory"]
states = ("parameter shards", "optimizer state", "gradient shards")
rows = [r for r in m["rows"] if not r["host"] and (sys.argv[1] == "all" or r["what"].startswith(states))]
print(sum(r["bytes"] for r in rows))
PY
}

cat <<'END'
# Memory: estimators and the plan

Estimators count the states of a model: weights, gradients, moments. A run takes more: gathered parameters, gradients
that are not reduced yet, activations, logits. `fsdp-plan` prints all of it, because it is the plan that the run takes.

`accelerate estimate-memory` answers for one device without sharding ("training with Adam"); DeepSpeed's
`estimate_zero2_model_states_mem_needs` and `estimate_zero3_model_states_mem_needs` answer for GPUs of a node and nodes.
They ran from PyPI; GB are 10⁹ bytes of a GPU, for rows of 4,096 tokens, one a micro-batch, in bf16.

| model | GPUs | accelerate | ZeRO-2 | `SHARD_GRAD_OP`, states | all | ZeRO-3 | `FULL_SHARD`, states | all | ZeRO-3, optimizer offloaded | `offload: optimizer`, all |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
END
for m in llama-8b llama-70b; do
    for n in 8 64; do
        p=$(peers "$work/$m" $((n / 8)) 8)
        args=(--model "$m" --gpus "$n" --batch "$((n * 4096))")
        zero2=(fsdp.sharding_strategy=SHARD_GRAD_OP)
        off=(fsdp.offload=optimizer)
        echo "| $m | $n | $(gb "$(key "$p" accelerate)") | $(gb "$(key "$p" zero2)") | $(gb "$(ours states "${args[@]}" "${zero2[@]}")") | $(gb "$(ours all "${args[@]}" "${zero2[@]}")") | $(gb "$(key "$p" zero3)") | $(gb "$(ours states "${args[@]}")") | $(gb "$(ours all "${args[@]}")") | $(gb "$(key "$p" zero3_offload)") | $(gb "$(ours all "${args[@]}" "${off[@]}")") |"
    done
done

cat <<'END'

DeepSpeed counts 18 bytes a parameter for ZeRO-2 and ZeRO-3 (with fp32 gradients kept for the optimizer) and the largest
layer whole. libfsdp's states are fp32 masters, a bf16 copy of the shard, two moments and fp32 gradients: 18 bytes, too.
The difference between `states` and `all` is what estimators leave out.

## Against real runs on CPUs

Llamas in fp32. `planned` is the plan of a rank; `taken` is what a rank's process has at its peak (proportional set size,
so that shared pages count once) beyond what it has with a model of 100 parameters.

| model | ranks | strategy | accelerate | ZeRO-3 | planned | taken | planned / taken |
| --- | --- | --- | --- | --- | --- | --- | --- |
END
model tiny 16 16 1 1 1 256
model llama-12m 384 1024 6 6 2 256
model llama-32m 512 1408 10 8 8 256
yes 'the plan of a rank is what a rank takes' | head -n 4000 >text
run() { # model, ranks, strategy: the most that a rank has at a time (PSS), in bytes
    cat >run.yaml <<YAML
model: {path: $1, init: random}
data: {path: text, seq_len: 256}
train: {steps: 6, global_batch_size: 8, micro_batch_size: 1, threads: 1}
fsdp: {sharding_strategy: $3}
YAML
    "$BIN/fsdp-launch" -n "$2" run.yaml >log 2>err &
    local job=$! most=0 sum
    # The mean over the ranks: one that ends earlier leaves the pages that both had to the other.
    while kill -0 $job 2>/dev/null; do
        sum=$(cat $(pgrep -P $job | sed 's|.*|/proc/&/smaps_rollup|') 2>/dev/null </dev/null | awk -v n="$2" '/^Pss:/ {s += $2} END {printf "%.0f", s * 1024 / n}')
        [ "${sum:-0}" -gt "$most" ] && most=$sum
        sleep 0.05
    done
    wait $job || cat err >&2
    echo "$most"
}
for n in 1 2 4; do
    base=$(run tiny $n FULL_SHARD)
    for m in llama-12m llama-32m; do
        for s in FULL_SHARD NO_SHARD; do
            [ "$n$s" = 1FULL_SHARD ] && continue
            taken=$(($(run $m $n $s) - base))
            planned=$(ours all run.yaml --gpu cpu --gpus $n --node-size $n)
            p=$(peers "$work/$m" 1 $n)
            echo "| $m | $n | \`$s\` | $(gb "$(key "$p" accelerate)") | $(gb "$(key "$p" zero3)") | $(gb "$planned") | $(gb $taken) | $(awk -v a="$planned" -v b=$taken 'BEGIN { printf "%.2f", a / b }') |"
        done
    done
done
