#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Tokenizer and template files of the model's folder go along with checkpoints, merges and resharding,
# byte for byte; a run that was resumed from a checkpoint carries them on.
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/train.sh"
make_input
names="generation_config.json tokenizer.json tokenizer_config.json tokenizer.model special_tokens_map.json added_tokens.json
    vocab.json vocab.txt merges.txt spiece.model tekken.json params.json chat_template.jinja chat_template.json"
for name in $names; do
    printf '{"of": "%s"}\n' "$name" >"model/$name"
done
head -c 3000 /dev/urandom >model/tokenizer.model
echo '{"do_sample": false}' >model/generation_config.json
touch model/notes.md model/train.py
cat >run.yaml <<YAML
model: {path: model, init: random, seed: 1}
data: {path: text, seq_len: 32, tokenizer: bytes}
train: {steps: 1, global_batch_size: 4, seed: 2, threads: 1}
optim: {lr: 3.0e-3}
checkpoint: {path: ck}
YAML
carried() { # folder
    local name
    for name in $names; do
        cmp "model/$name" "$1/$name" || return 1
    done >log 2>&1
    [ "$(ls "$1" | grep -v -e '^model.*safetensors' -e '^README.md$' | wc -l)" = $(($(wc -w <<<"$names") + 1)) ]
}
run -n 2 run.yaml && carried ck/step-00000001/hf
ok $? "a checkpoint has them all, and nothing else"
"$BIN/ckpt-merge" -q ck -o merged/ 2>err && carried merged
ok $? "so has a merge"
"$BIN/ckpt-reshard" -q ck --world 3 -o three 2>err && carried three/hf
ok $? "a checkpoint for three ranks"
"$BIN/ckpt-merge" -q ck --dcp -o dcp 2>err && "$BIN/ckpt-merge" -q dcp -o back/ 2>>err && carried back
ok $? "torch's format, and the way back"
mv model gone
sed -e 's/path: model, init: random/path: ck, init: pretrained/; s/path: ck}/path: next}/' run.yaml >next.yaml
run next.yaml model.path=merged
mv gone model
carried next/step-00000001/hf
ok $? "a run that begins with the merge carries them on"
echo "1..$n"
exit $bad
