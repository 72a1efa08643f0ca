#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# fsdp-generate reads weights and the small files next to them from a store.
# run: timeout=600
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/train.sh"
at=$S3_TEST_URL/generate-$$
export TMPDIR=$PWD/temp
mkdir temp
gen() { "$BIN/fsdp-generate" --device cpu --tokens 84,111 --max-tokens 12 "$@" 2>err; }

make_input
echo '{"do_sample": false, "repetition_penalty": 0.01}' >model/generation_config.json
cat >run.yaml <<YAML
model: {path: model, init: random, seed: 1}
data: {path: text, seq_len: 32}
train: {steps: 2, global_batch_size: 4, seed: 2, threads: 1}
optim: {lr: 3.0e-3}
checkpoint: {path: ck}
YAML
run -n 3 run.yaml && "$BIN/ckpt-merge" -q ck -o merged/ && gen --model merged >want && gen --model ck | cmp -s - want
ok $? "a checkpoint of three ranks gives the text of its merge"
gen --model merged --ignore-generation-config --greedy | cmp -s - want
ok "$((!$?))" "the folder's penalty counts"
run -n 3 run.yaml checkpoint.path="$at/run" && gen --model "$at/run" | cmp -s - want
ok $? "so does one in a store"
"$BIN/ckpt-merge" -q "$at/run" -o "$at/merged/" 2>err && gen --model "$at/merged" | cmp -s - want
ok $? "and a Hugging Face folder there"
cat >model/chat_template.jinja <<'END'
{%- for message in messages %}{{ message.role + bos_token + message.content + '\n' }}{% endfor -%}
END
echo '{"bos_token": ": "}' >model/tokenizer_config.json
chat() { "$BIN/fsdp-generate" --device cpu --chat --prompt hello --greedy --max-tokens 12 "$@" 2>err; }
rm -r ck merged
run -n 3 run.yaml && run -n 3 run.yaml checkpoint.path="$at/chat" && "$BIN/ckpt-merge" -q ck -o merged/ && chat --model merged >want &&
    chat --model ck | cmp -s - want && chat --model "$at/chat" | cmp -s - want && grep -q "prompt: 12 tokens" err
ok $? "a chat with a checkpoint in a store, whose template is fetched, is that with its merge"
[ -z "$(ls temp)" ]
ok $? "small files that were fetched are removed"
gen --model "$at/nowhere" >out
ok "$([ $? = 1 ] && [ ! -s out ] && grep -q nowhere err; echo $?)" "none there: $(cat err)"
echo "1..$n"
exit $bad
