#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# From a folder that transformers wrote and a file of chats to a chat: two ranks train, one is killed, three
# continue, the checkpoint is merged, and fsdp-generate --chat answers as transformers does with the same
# folder. Losses and gradient norms of all steps are those of transformers and torch on the same rows.
# run: timeout=600
. "$TOP/tests/lib/python.sh"
need_python 'torch, transformers, safetensors, tokenizers'
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/train.sh"
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 PYTHONDONTWRITEBYTECODE=1 XDG_CACHE_HOME=$PWD/cache
python() {
    "$PYTHON" -W ignore "$TOP/tests/interop/chat_train.py" "$@"
}

python make model >log 2>&1
ok $? "transformers saves a model, its tokenizer and template, and chats"
cat >run.yaml <<'END'
model: {path: model}
data: {path: model/chats.jsonl, eval_path: model/held-out.jsonl, format: jsonl, layout: rows, seq_len: 96}
train: {steps: 40, global_batch_size: 12, micro_batch_size: 1}
optim: {lr: 3.0e-3, schedule: constant, weight_decay: 0}
checkpoint: {path: ck, interval: 5, switches: ''}
log: {metrics: metrics.jsonl, progress: plain}
END

"$BIN/fsdp-launch" -n 2 run.yaml >log 2>err &
job=$!
wait_for metrics.jsonl '"step": 14,'
kill -KILL "$(rank_pid 1)"
wait $job
ok "$([ $? = 76 ]; echo $?)" "one of two ranks is killed"
ok "$(holds log 'tokenizing model/chats.jsonl'; echo $?)" "chats became tokens once"
run -n 3 run.yaml
ok $? "three ranks continue"
ok "$(holds log 'resumes from ck/step-000000' && ! holds log tokenizing; echo $?)" "from the checkpoint, with the tokens that are there"
python check model metrics.jsonl >checked 2>&1
status=$?
cp checked log
ok $status "every step is that of transformers and torch"
"$BIN/ckpt-merge" ck -o merged >log 2>err
ok $? "merged"
python questions merged >log 2>&1
ok $? "transformers answers"
i=0
while IFS= read -r question && IFS= read -r answer <&3; do
    i=$((i + 1))
    "$BIN/fsdp-generate" --model merged --chat --greedy --max-tokens 40 --prompt "$question" >log 2>err
    ok "$([ "$(cat log)" = "$answer" ]; echo $?)" "the same answer to: $question"
done <questions 3<answers
ok "$([ $i -ge 4 ]; echo $?)" "$i questions"
"$BIN/fsdp-generate" --model ck --greedy --max-tokens 40 --prompts talks.jsonl >got.jsonl 2>err
ok $? "the sharded checkpoint answers a file of chats"
python compare merged got.jsonl >log 2>&1
ok $? "with the same tokens"
echo "1..$n"
exit $bad
