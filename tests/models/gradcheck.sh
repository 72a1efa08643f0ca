#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# fsdp-gradcheck: the families pass, also with recomputation; its exit status; bad command lines.
cd "$TEST_TMP" || exit 1
data=$TOP/tests/data

n=0 bad=0
expect() { # exit status, pattern of the output, text, arguments...
    local want=$1 pattern=$2 text=$3 rc
    shift 3
    "$BIN/fsdp-gradcheck" "$@" >out 2>&1
    rc=$?
    n=$((n + 1))
    if [ $rc = "$want" ] && grep -q -e "$pattern" out; then
        echo "ok $n - $text"
    else
        echo "not ok $n - $text (exit $rc)"
        sed 's/^/# /' out
        bad=1
    fi
}

expect 0 '^gpt2: 28 parameters, 0 over 0.003' "GPT-2" --model "$data/gpt2-tiny"
expect 0 '^llama: 29 parameters, 0 over' "Llama with grouped heads, tied" --model "$data/llama-odd" \
    --seq-len 20 --batch 3
expect 0 '^llama: 21 parameters, 0 over' "Llama, untied, by its config.json" \
    --model "$data/llama-tiny/config.json" --seed 5 --directions 3
expect 0 '^gpt2: 28 parameters, 0 over' "with recomputation" --model "$data/gpt2-tiny" \
    --activation-checkpointing full
expect 0 '^llama: 29 parameters, 0 over' "of some of it" --model "$data/llama-odd" \
    --activation-checkpointing selective --seq-len 20
expect 2 'some: expected none, full or selective' "of what is not known" --model "$data/gpt2-tiny" \
    --activation-checkpointing some
expect 1 '^gpt2: 28 parameters, [1-9].* over 1e-07' "differences over the tolerance fail" \
    --model "$data/gpt2-tiny" --tolerance 1e-7
expect 0 '^gpt2: 28 parameters, 0 over' "with dropout in all its places, recomputed" \
    --model "$data/gpt2-tiny" --dropout 0.3 --activation-checkpointing selective
expect 0 '^llama: 29 parameters, 0 over' "Llama with documents in a row, masked, with dropout" \
    --model "$data/llama-odd" --seq-len 20 --documents 3 --mask --dropout 0.2
expect 0 '^gpt2: 28 parameters, 0 over' "GPT-2 likewise" \
    --model "$data/gpt2-tiny" --documents 3 --mask --dropout 0.2
mkdir mixture
cat >mixture/config.json <<'END'
{"model_type": "granitemoeshared", "vocab_size": 61, "hidden_size": 20, "intermediate_size": 12,
 "shared_intermediate_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "num_local_experts": 5,
 "num_experts_per_tok": 2, "residual_multiplier": 0.3, "logits_scaling": 2, "attention_multiplier": 0.3}
END
expect 0 '^granitemoeshared: 25 parameters, 0 over' "a mixture of experts, with an MLP next to it" --model mixture
expect 0 '^granitemoeshared: 25 parameters, 0 over' "with recomputation" --model mixture \
    --activation-checkpointing full --mask
mkdir biased
cat >biased/config.json <<'END'
{"model_type": "gpt_oss", "vocab_size": 61, "hidden_size": 20, "intermediate_size": 12, "num_hidden_layers": 2,
 "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6, "num_local_experts": 3, "num_experts_per_tok": 3,
 "sliding_window": 5, "max_position_embeddings": 64, "initializer_range": 0.2}
END
expect 0 '^gpt_oss: 37 parameters, 0 over' "experts with biases, and sinks" --model biased
sed 's/"attn_pdrop": 0.0/"attn_pdrop": 0.1/' "$data/gpt2-tiny/config.json" >config.json
expect 0 '^gpt2: 28 parameters, 0 over' "config.json's dropout is off unless asked for" --model .
expect 1 '9 documents do not fit into 8 tokens' "too many documents" --model . --documents 9
expect 1 'sequence length 65 is over the model.s n_positions (64)' "too long" \
    --model "$data/gpt2-tiny" --seq-len 65
expect 1 'nowhere' "no such model" --model nowhere
expect 0 'central finite differences' "--help" --help
echo '{"model_type": "none"}' >none.json
expect 1 "'none' is not a known model family" "a model that is not known" --model none.json
known=$(sed 's/.*(known: \(.*\)).*/\1/' out)
families=$(sed -n 's/^ *{*[.]type = "\([a-z0-9_]*\)",$/\1/p' "$TOP/models/family/families.c" | paste -s -d ' ')
n=$((n + 1))
if [ "$(wc -w <<<"$families")" -ge 16 ] && [ "${families// /, }" = "$known" ]; then
    echo "ok $n - the known ones are those of families.c: $known"
else
    echo "not ok $n - the known ones are those of families.c: $known, not $families"
    bad=1
fi
expect 2 'give the model: --model PATH' "no model"
expect 2 "'more': only options" "an argument too many" --model "$data/gpt2-tiny" more
expect 2 '--directions 0: expected a whole number from 1' "no directions" --model "$data/gpt2-tiny" --directions 0
expect 2 '--batch 1x: expected a whole number' "not a number" --model "$data/gpt2-tiny" --batch 1x
expect 2 'from 0 to less than 1' "dropout out of range" --model "$data/gpt2-tiny" --dropout 1
expect 2 'between 0 and 1' "a tolerance out of range" --model "$data/gpt2-tiny" --tolerance 2
expect 2 '--device tpu: expected auto, cpu or cuda' "a device that there is not" --model "$data/gpt2-tiny" --device tpu

# Memory that the host cannot touch (tests/opaque) in place of a GPU's; the numbers are the CPU's.
export FSDP_CUDA_LIBRARY=$BIN/tests/libfsdp-opaque.so
expect 0 '^gpt2: 28 parameters, 0 over' "on the CPU" --model "$data/gpt2-tiny" --directions 1 --device cpu
mv out on-cpu
expect 0 "$(tail -n 1 on-cpu)" "on a device" --model "$data/gpt2-tiny" --directions 1 --device cuda
n=$((n + 1))
if cmp -s out on-cpu; then
    echo "ok $n - with the same numbers"
else
    echo "not ok $n - with the same numbers"
    diff on-cpu out | sed 's/^/# /'
    bad=1
fi
export FSDP_CUDA_LIBRARY=nowhere.so
expect 1 'device cuda: nowhere.so cannot be opened' "no GPU" --model "$data/gpt2-tiny" --device cuda
expect 0 '^gpt2: 28 parameters, 0 over' "auto without one" --model "$data/gpt2-tiny"
unset FSDP_CUDA_LIBRARY
expect 2 'fsdp-gradcheck --help' "an unknown option" --frobnicate

echo "1..$n"
exit $bad
