#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Folders whose weights have other names than the model's, or two of a tied weight.
set -u
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
TINY=$TOP/tests/data/llama-tiny GPT2=$TOP/tests/data/gpt2-tiny
logits() { "$BIN/fsdp-generate" --device cpu --model "$1" --tokens 5,6,7,8 --logits 2>err; }
train() { # model, ranks, output
    "$BIN/fsdp-launch" -n "$2" run.yaml model.path="$1" >"$3" 2>&1
}
losses() { sed -E 's/.*"loss": ([^,]*),.*/\1/' m.jsonl; }

for i in $(seq 200); do
    echo "line $i of the text: $((i * i))"
done >text
cat >run.yaml <<END
model: {init: pretrained}
data: {path: text, seq_len: 16, tokenizer: bytes}
train: {steps: 2, global_batch_size: 4, seed: 2}
optim: {lr: 1.0e-3}
fsdp: {timeout: 60}
log: {metrics: m.jsonl}
END

# ---- both names of a tied weight -----------------------------------------------------------------

# A model whose config.json ties, though the head has values of its own.
mkdir differs same
for folder in differs same; do
    sed 's/"tie_word_embeddings": false/"tie_word_embeddings": true/' "$TINY/config.json" >$folder/config.json
done
cp "$TINY/model.safetensors" differs/
chmod u+w differs/*
says="'differs/model.safetensors': tensor 'lm_head.weight' differs from 'model.embed_tokens.weight', but config.json ties them; set tie_word_embeddings to false"
logits differs >out
[ $? = 1 ] && [ ! -s out ] && grep -q -F "$says" err
ok $? "fsdp-generate refuses two values for one weight: $(head -n 1 err)"
for n in 1 2; do
    train differs $n log
    [ $? != 0 ] && grep -q -F "$says" log
    ok $? "so does fsdp-launch on $n ranks"
done
"$BIN/ckpt-merge" differs -o differs16 --dtype bfloat16 --overwrite >/dev/null 2>&1 && logits differs16 >out
[ $? = 1 ] && grep -q "differs from" err
ok $? "and in bfloat16"
sed -i 's/"tie_word_embeddings": true/"tie_word_embeddings": false/' differs/config.json
logits differs | cmp -s - <(logits "$TINY")
ok $? "untied it is the model that it was"

# The head's values in both places: the embedding's follow them in the file.
file=$TINY/model.safetensors
head=$(($(od -An -t u8 -N8 "$file") + 8))
{ head -c $((head + 65536)) "$file" && tail -c +$((head + 1)) "$file" | head -c 65536 && tail -c +$((head + 131073)) "$file"; } >same/model.safetensors
logits same >same.txt
ok $? "equal values are no contradiction"
[ "$(grep -c warning err)" = 0 ]
ok $? "and nothing to speak of: $(cat err)"
train same 2 log && ! grep -q warning log
ok $? "nor in training"
mv m.jsonl same.jsonl

# One of them alone: either name will do.
printf '%s\n' 'model.embed_tokens.weight -> lm_head.weight' >map
"$BIN/ckpt-merge" same -o embed --exclude lm_head.weight >log 2>&1 &&
    "$BIN/ckpt-merge" embed -o lone --map map >>log 2>&1 && logits lone | cmp -s - same.txt
ok $? "the head's name alone: $(tail -n 1 log err | tr '\n' ' ')"
train lone 2 log && losses >lone.txt && mv same.jsonl m.jsonl && losses | cmp -s - lone.txt
ok $? "in training, too"

# ---- names of other writers ----------------------------------------------------------------------

printf '%s\n' 'transformer.** -> $1' >map
"$BIN/ckpt-merge" "$GPT2" -o bare --map map >log 2>&1 && logits bare | cmp -s - <(logits "$GPT2")
ok $? "GPT-2 without 'transformer.', as published: $(tail -n 1 log)"
train bare 2 log
ok $? "is trained: $(tail -n 1 log)"

mkdir neox
cat >neox/config.json <<END
{"model_type": "gpt_neox", "vocab_size": 256, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
 "num_attention_heads": 2, "max_position_embeddings": 64, "rotary_pct": 0.5}
END
"$BIN/fsdp-launch" -n 1 run.yaml model.path=neox model.init=random checkpoint.path=ck >log 2>&1 &&
    "$BIN/ckpt-merge" ck -o trained >>log 2>&1
ok $? "a GPT-NeoX: $(tail -n 1 log)"
printf '%s\n' 'embed_out.weight -> lm_head.weight' >map
"$BIN/ckpt-merge" trained -o renamed --map map >log 2>&1 && logits trained >trained.txt && logits renamed | cmp -s - trained.txt
ok $? "whose head is lm_head.weight: $(tail -n 1 log err)"

echo "1..$n"
exit $bad
