#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# run: timeout=300
# The default units: a large embedding and head that are not tied are units of their own, others are
# in the root's. Checkpoints do not depend on it: tests/data/llama-root-unit was saved by 2 ranks
# with embedding and head in the root's unit, after 2 steps on the text below.
set -u
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/train.sh"
run() { "$launch" "$@" >log 2>err || { sed 's/^/# /' err; false; }; }

for i in $(seq 200); do echo "line $i of the text: $((i * i)) and $((i * 7919 % 1000))"; done >text
mkdir model && cp "$TOP/tests/data/llama-root-unit/hf/config.json" model
cat >run.yaml <<END
model: {path: model, init: random, seed: 1}
data: {path: text, seq_len: 16}
train: {steps: 3, global_batch_size: 6, seed: 2}
optim: {lr: 1.0e-3, schedule: constant}
fsdp: {timeout: 60}
checkpoint: {interval: 100, fsync: false}
END
apart='fsdp.wrap_classes=[Embedding, LlamaHead, LlamaDecoderLayer]'
near() { "$BIN/ckpt-diff" "$1" "$2" --atol 1e-6 >log 2>err || { sed 's/^/# /' log; false; }; }

# ---- checkpoints ------------------------------------------------------------------------------

for ranks in 1 2 3; do
    for units in root apart; do
        mkdir $units$ranks && cp -r "$TOP/tests/data/llama-root-unit" $units$ranks/step-00000002
        run -n $ranks run.yaml checkpoint.path=$units$ranks $([ $units = root ] || echo "${apart// /}")
        ok "$([ $? = 0 ] && holds log 'resumes from'; echo $?)" "$ranks rank(s), embedding and head $units: resumes"
    done
    ok "$(same root$ranks/step-00000003 apart$ranks/step-00000003 || near root$ranks/step-00000003 apart$ranks/step-00000003; echo $?)" \
        "the state after a step is the same"
    near root1/step-00000003 apart$ranks/step-00000003
    ok $? "as on one rank"
done

# ---- the default ------------------------------------------------------------------------------

mkdir large tied gpt2
config() { # tied
    echo '{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 512, "intermediate_size": 512,
        "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 4096, "max_position_embeddings": 64,
        "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "tie_word_embeddings": '"$1}"
}
config false >large/config.json
config true >tied/config.json
echo '{"model_type": "gpt2", "n_embd": 512, "n_layer": 4, "n_head": 4, "vocab_size": 4096, "n_positions": 64,
    "tie_word_embeddings": false}' >gpt2/config.json
units() { "$launch" -n 2 --dump-schedule run.yaml model.path="$1" >log 2>err || { sed 's/^/# /' err; false; }; }
units large
ok "$([ $? = 0 ] && holds log ' 7 units' && grep -q 'gather  *model.embed_tokens' log && grep -q 'gather  *lm_head' log; echo $?)" \
    "a large embedding and head are units"
units tied
ok "$([ $? = 0 ] && holds log ' 5 units'; echo $?)" "not so where they are tied"
units model
ok "$([ $? = 0 ] && holds log ' 2 units'; echo $?)" "nor where they are small"
units gpt2
ok "$([ $? = 0 ] && holds log ' 7 units'; echo $?)" "GPT-2, not tied: likewise"

# ---- below the layer ------------------------------------------------------------------------------
# A checkpoint of any units resumes with any other; what is refused names the pattern.

below=('fsdp.wrap_classes=[LlamaAttention,LlamaMLP]'
    'fsdp.wrap_policy=list fsdp.wrap_modules=[model.layers.0,model.layers.*.mlp]'
    'fsdp.activation_checkpointing=full fsdp.checkpoint_modules=[model.layers.*.mlp]'
    'fsdp.activation_checkpointing=selective fsdp.wrap_classes=[LlamaDecoderLayer,LlamaMLP]')
for i in "${!below[@]}"; do
    mkdir below$i && cp -r "$TOP/tests/data/llama-root-unit" below$i/step-00000002
    # shellcheck disable=SC2086
    run -n 3 run.yaml checkpoint.path=below$i ${below[i]}
    ok "$([ $? = 0 ] && near root1/step-00000003 below$i/step-00000003; echo $?)" "resumes with ${below[i]}"
done
no() { # what it says, settings
    ! "$launch" -n 2 --dump-schedule run.yaml "${@:2}" >log 2>err && grep -qF -- "$1" err
    ok $? "refused: $1"
}
no "no module matches 'model.layers.*.attn'" fsdp.wrap_policy=list 'fsdp.wrap_modules=[model.layers.*.attn]'
no "'model.layers.9.mlp' names no module" fsdp.activation_checkpointing=full \
    'fsdp.checkpoint_modules=[model.layers.9.mlp]'
no "'model.layers.*.mlp' names no module that has activations to make again" \
    fsdp.activation_checkpointing=selective 'fsdp.checkpoint_modules=[model.layers.*.mlp]'
no "names no module for fsdp.wrap_policy list" fsdp.wrap_policy=list
for sizes in "2 4" "4 2"; do # that of the whole group is no group of its own, in either order
    read -r a b <<<"$sizes"
    "$launch" -n 4 --dump-schedule run.yaml \
        "fsdp.unit_overrides=[model.layers.0.mlp reshard_after_forward=$a,model.layers.0.self_attn reshard_after_forward=$b]" >log 2>err
    ok $? "overrides of reshard_after_forward $sizes on 4 ranks"
done
no "LlamaAttn" 'fsdp.wrap_classes=[LlamaAttn]'

# The plan of 405 x 10^9 parameters on 512 ranks: docs/schedule.md has the table.
mkdir l405
echo '{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 16384, "intermediate_size": 53248,
    "num_hidden_layers": 126, "num_attention_heads": 128, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "rope_theta": 500000.0}' >l405/config.json
plan() { # settings: GiB of unsharded parameters and gradients, of activations, of all; percent exposed
    "$launch" -n 512 --nodes 64 --dump-schedule run.yaml model.path=l405 data.seq_len=8192 train.global_batch_size=1024 \
        train.micro_batch_size=1 fsdp.param_dtype=bfloat16 "$@" >log 2>err || sed 's/^/# /' err
    awk '/^modelled: / && !e { e = $(NF - 1) } / GiB$/ || / MiB$/ { g = $NF == "GiB" ? $(NF - 1) : $(NF - 1) / 1024 }
        /unsharded/ { u += g } /activations/ { a += g } /in all/ { printf "%.1f %.1f %.1f %d\n", u, a, g, e }' log
}
full=fsdp.activation_checkpointing=full parts='fsdp.wrap_classes=[Embedding,LlamaHead,LlamaAttention,LlamaMLP]'
ahead='fsdp.forward_prefetch=2 fsdp.backward_prefetch=2 fsdp.limit_all_gathers=3'
row() { # units, recomputed, gathered ahead, settings: the row of the table is what is planned
    read -r u a all e < <(plan "${@:4}")
    local want="| $1 | $2 | $3 | $u GiB | $a GiB | $all GiB | $e % |"
    grep -qF -- "$want" "$TOP/docs/schedule.md"
    ok $? "docs/schedule.md: $want"
}
row layers layers 1 $full
row "attention, MLP" layers 1 $full "$parts"
# shellcheck disable=SC2086
row "attention, MLP" layers 2 $full "$parts" $ahead
row layers "attention, MLP" 1 $full 'fsdp.checkpoint_modules=[model.layers.*.self_attn,model.layers.*.mlp]'
row layers MLP 1 $full 'fsdp.checkpoint_modules=[model.layers.*.mlp]'
row layers nothing 1

echo "1..$n"
exit $bad
