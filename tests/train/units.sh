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

echo "1..$n"
exit $bad
