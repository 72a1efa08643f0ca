#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Training that saves to a store, keeps, resumes; copies between stores and folders; remains.
# run: timeout=900
set -u
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/train.sh"
at=$S3_TEST_URL/train-$$
launch() { "$BIN/fsdp-launch" "$@" >log 2>err; }
run() { "$BIN/$@" >log 2>err; }

make_input
cat >run.yaml <<YAML
model: {path: model, init: random, seed: 1}
data: {path: text, seq_len: 32}
train: {steps: 6, global_batch_size: 4, seed: 2, threads: 1}
optim: {lr: 3.0e-3, schedule: constant, warmup_steps: 3}
checkpoint: {path: $at/run, interval: 2, keep: 2}
log: {metrics: m.jsonl}
YAML
launch -n 2 run.yaml checkpoint.path=local log.metrics=local.jsonl
ok $? "a run with checkpoints in a folder"
launch -n 2 run.yaml train.steps=4 checkpoint.async=true && holds log "saved $at/run/step-00000002"
ok $? "the same in a store, in the background"
launch -n 2 run.yaml fsdp.sharding_strategy=NO_SHARD log.metrics=other.jsonl checkpoint.path="$at/other" \
    checkpoint.resume="$at/run/step-00000002"
ok "$([ $? = 0 ] && holds log "resumes from $at/run/step-00000002"; echo $?)" \
    "another run resumes from one of its checkpoints, on another mesh"
launch -n 2 run.yaml checkpoint.async=true && holds log "resumes from $at/run/step-00000004"
ok $? "it resumes from its newest"
ok "$(cmp -s <(numbers local.jsonl) <(numbers m.jsonl); echo $?)" "and continues as if it had never stopped"
run ckpt-diff local "$at/run" && run ckpt-verify "$at/run"
ok $? "its state is that of the run in a folder"
run ckpt-info "$at/run/step-00000002"
ok "$([ $? = 1 ] && run ckpt-info "$at/run/step-00000004"; echo $?)" "it keeps the newest two"
launch -n 2 run.yaml checkpoint.resume=never
ok "$([ $? != 0 ] && holds err "there is already $at/run/step-00000006"; echo $?)" "another run does not write next to it"
launch --print-config run.yaml
ok "$([ $? = 0 ] && ! grep -q "$AWS_SECRET_ACCESS_KEY" log err && ! grep -q "$AWS_ACCESS_KEY_ID" log err; echo $?)" \
    "--print-config shows no secret"
AWS_SECRET_ACCESS_KEY=wrong launch -n 2 run.yaml checkpoint.path="$at/none"
ok "$([ $? != 0 ] && holds err 'checkpoint.path' && ! grep -q -w wrong err; echo $?)" \
    "a wrong secret ends it before the first step"

# ---- copies ------------------------------------------------------------------------------------------

run ckpt-cp "$at/run" copies/ && run ckpt-diff copies/step-00000006 local && run ckpt-verify copies/step-00000006
ok $? "from the store to a folder"
run ckpt-cp --verify local/step-00000004 "$at/copies/" && run ckpt-diff "$at/copies/step-00000004" local/step-00000004
ok $? "from a folder to the store"
run ckpt-cp "$at/run" "$at/copies/" && run ckpt-verify "$at/copies" && run ckpt-diff "$at/copies" local
ok $? "from the store to itself"
run ckpt-cp "$at/run" "$at/copies/" && holds log 'this very checkpoint'
ok $? "what is there is not copied again"
run ckpt-cp local/step-00000006 "$at/copies/"
ok "$([ $? = 1 ] && holds err 'already exists'; echo $?)" "nor does another take its name"
{ CKPT_FAULT=kill:60 "$BIN/ckpt-cp" --threads 1 local "$at/killed" >log 2>err; } 2>noise
run ckpt-info "$at/killed"
ok "$([ $? = 1 ]; echo $?)" "a killed copy is no checkpoint"
run ckpt-cp --threads 1 local "$at/killed" && run ckpt-verify "$at/killed" && run ckpt-diff "$at/killed" local
ok $? "the same command completes it"
run ckpt-merge "$at/run" -o hf && run ckpt-cp hf "$at/hf" && run ckpt-diff --model "$at/hf" local
ok $? "a Hugging Face folder"

run ckpt-merge "$at/run" -o one.safetensors && run ckpt-merge local/step-00000004 -o two.safetensors &&
    run ckpt-cp one.safetensors "$at/one.safetensors" && run ckpt-cp one.safetensors "$at/one.safetensors"
ok $? "one file, and once more"
run ckpt-cp two.safetensors "$at/one.safetensors"
ok "$([ $? = 1 ] && holds err 'holds other bytes, and is not overwritten' &&
    run ckpt-diff --data "$at/one.safetensors" one.safetensors; echo $?)" "another of equal size is not taken for it"

# ---- remains -----------------------------------------------------------------------------------------

{ CKPT_FAULT=kill:60 "$BIN/ckpt-cp" --threads 1 local/step-00000004 "$at/run/step-00000009" >log 2>err; } 2>noise
run ckpt-info --gc "$at/run"
ok "$([ $? = 0 ] && grep -q "^stays .*$at/run/step-00000009/" log; echo $?)" "young remains stay"
run ckpt-info --gc --dry-run --older 0s "$at/run" && grep -q "^would go .*$at/run/step-00000009/" log
ok $? "a dry run names them"
run ckpt-info --gc --older 0s "$at/run" && grep -q "^removed .*$at/run/step-00000009/" log
ok $? "older ones go"
run ckpt-info --gc --older 0s --json "$at/run" && holds log '"remains": []' && holds log '"uploads": 0'
ok $? "nothing is left"
run ckpt-verify "$at/run" && run ckpt-diff "$at/run" local
ok $? "but the checkpoints"
echo "1..$n"
exit $bad
