#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Adapters from end to end: from a folder that transformers wrote and a file of chats, two ranks train LoRA and a whole
# head, one is killed, three continue, the adapter is merged, and the folder answers here as it does in transformers;
# so do model and adapter apart, here and in PEFT. A run that was not killed has the same losses. A checkpoint whose
# model was changed is refused by name.
# run: timeout=600
. "$TOP/tests/lib/python.sh"
need_python 'torch, transformers, safetensors, tokenizers, peft'
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/train.sh"
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 PYTHONDONTWRITEBYTECODE=1 XDG_CACHE_HOME=$PWD/cache
python() {
    "$PYTHON" -W ignore "$TOP/tests/interop/$1.py" "${@:2}"
}

python chat_train make model >log 2>&1
ok $? "transformers saves a model, its tokenizer and template, and chats"
cat >run.yaml <<'END'
model: {path: model}
lora: {r: 8, alpha: 16, dropout: 0.1, targets: [q_proj, v_proj, down_proj], modules_to_save: [lm_head, embed_tokens]}
data: {path: model/chats.jsonl, format: jsonl, layout: rows, seq_len: 96}
train: {steps: 30, global_batch_size: 12, micro_batch_size: 1}
optim: {lr: 3.0e-3, schedule: constant, weight_decay: 0}
checkpoint: {path: ck, interval: 5, async: true, switches: ''}
log: {metrics: metrics.jsonl, progress: plain}
END

"$BIN/fsdp-launch" -n 2 run.yaml >log 2>err &
job=$!
wait_for metrics.jsonl '"step": 14,'
kill -KILL "$(rank_pid 1)"
wait $job
ok "$([ $? = 76 ]; echo $?)" "one of two ranks is killed"
latest=$(ls -d ck/step-* | tail -n 1)
cp -r model changed
python adapters change changed model.layers.2.mlp.up_proj.weight >log 2>&1
run -n 3 run.yaml model.path=changed
ok "$([ $? != 0 ] && holds err 'model.layers.2.mlp.up_proj.weight differs'; echo $?)" "a model that was changed is refused by name"
run -n 3 run.yaml lora.r=0
ok "$([ $? != 0 ] && holds err 'holds adapters and not the model'; echo $?)" "a run without adapters is refused"
run -n 3 run.yaml lora.r=4
ok "$([ $? != 0 ] && holds err 'were trained times 2, and are times 4 now'; echo $?)" "another scale is refused by name"
run -n 3 run.yaml lora.r=4 lora.alpha=8
ok "$([ $? != 0 ] && holds err lora_A; echo $?)" "and another rank"
mv model moved
run -n 3 run.yaml model.path=moved data.path=moved/chats.jsonl
ok $? "three ranks continue, and the model may have moved"
ok "$(holds log "resumes from $latest"; echo $?)" "from the checkpoint"
mv moved model
run -n 1 run.yaml checkpoint.path= log.metrics=straight.jsonl
ok $? "one rank trains without an end"
python adapters losses straight.jsonl metrics.jsonl >log 2>&1
ok $? "both have the same losses"

"$BIN/ckpt-merge" --adapter ck model -o merged >log 2>err
ok $? "merged"
python chat_train questions merged >log 2>&1
ok $? "transformers answers"
i=0
while IFS= read -r question && IFS= read -r answer <&3; do
    i=$((i + 1))
    "$BIN/fsdp-generate" --model merged --chat --greedy --max-tokens 40 --prompt "$question" >log 2>err
    ok "$([ "$(cat log)" = "$answer" ]; echo $?)" "the same answer to: $question"
    "$BIN/fsdp-generate" --model model --adapter ck --chat --greedy --max-tokens 40 --prompt "$question" >log 2>err
    ok "$([ "$(cat log)" = "$answer" ]; echo $?)" "and of model and adapter apart"
done <questions 3<answers
ok "$([ $i -ge 4 ]; echo $?)" "$i questions"
python adapters same model ck/step-00000030/hf merged >log 2>&1
ok $? "PEFT gives what transformers gives of the merged folder"
run -n 2 run.yaml lora.path=ck/step-00000030/hf checkpoint.path=next train.steps=1
ok $? "the adapter is a start"
echo "1..$n"
exit $bad
