#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Saving in the background: the same checkpoints as without, whatever happens next to them.
set -u
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/train.sh"

make_input
cat >run.yaml <<END
model: {path: model, init: random, seed: 1}
data: {path: text, seq_len: 32}
train: {steps: 8, global_batch_size: 12, seed: 2}
optim: {lr: 3.0e-3, schedule: constant, warmup_steps: 3}
fsdp: {timeout: 60}
checkpoint: {path: ck, interval: 2, fsync: false}
log: {metrics: m.jsonl}
END
async="checkpoint.async=true"

run -n 2 run.yaml checkpoint.path=sync log.metrics=sync.jsonl checkpoint.interval=1
ok $? "2 ranks save as they go"
run -n 2 run.yaml $async checkpoint.path=async log.metrics=async.jsonl
ok $? "and in the background"
ok "$([ "$(cd async && echo step-*)" = "$(echo step-0000000{2,4,6,8})" ]; echo $?)" "every checkpoint is there"
for step in 2 4 6 8; do
    ok "$(same sync/step-0000000$step async/step-0000000$step; echo $?)" \
        "step $step: fingerprints equal those of a synchronous save"
done
ok "$("$BIN/ckpt-verify" async/step-00000004 >verify 2>&1; echo $?)" "its bytes are what the manifest says"
ok "$(cmp -s <(numbers sync.jsonl) <(numbers async.jsonl); echo $?)" "training was not disturbed"
ok "$(grep '"step": 3,' async.jsonl | grep -q '"saving": true, "save_held_s": [0-9.e-]*'; echo $?)" \
    "steps next to a save are marked in the metrics"
ok "$(grep -q saving sync.jsonl; echo $((1 - $?)))" "and no others"
ok "$(holds log 'in the background)'; echo $?)" "the log says how it was saved"

replicas="fsdp.sharding_strategy=NO_SHARD log.metrics= train.steps=4"
run -n 3 run.yaml $replicas checkpoint.path=whole && run -n 3 run.yaml $replicas $async checkpoint.path=shared
ok "$(same whole/step-00000002 shared/step-00000002; echo $?)" "replicas share the writing of a copy"

# ---- a save while another is in flight -------------------------------------------------------------

run -n 2 run.yaml $async checkpoint.async_busy=skip checkpoint.interval=1 checkpoint.fsync=true \
    checkpoint.path=skip log.metrics=
ok $? "saves that come too early are left out"
wrong=0
for step in skip/step-*; do same "sync/${step#skip/}" "$step" || wrong=1; done
ok "$([ $wrong = 0 ] && [ -d skip/step-00000001 ] && [ -d skip/step-00000008 ]; echo $?)" \
    "the first and the last are there, and all that are there are right"
nskipped=$((8 - $(ls -d skip/step-* | wc -l)))
ok "$([ "$(grep -c 'is not saved: the save before' err)" = $nskipped ]; echo $?)" \
    "each of the $nskipped others is warned of"

# ---- failures --------------------------------------------------------------------------------------

CKPT_FAULT=fail:40 run -n 2 run.yaml $async checkpoint.path=failed log.metrics=
ok "$([ $? != 0 ]; echo $?)" "a failed background save ends the run"
ok "$(holds err 'injected fault'; echo $?)" "saying why"
wrong=0
for step in failed/step-*; do
    [ -d "$step" ] || continue
    case $step in *.tmp.*) wrong=1 ;; *) same "sync/${step#failed/}" "$step" || wrong=1 ;; esac
done
ok $wrong "nothing half-made is published, nothing is left over"
run -n 2 run.yaml $async checkpoint.path=failed log.metrics=
ok "$(same sync/step-00000008 failed/step-00000008; echo $?)" "the same command completes it"

# ---- a stop ----------------------------------------------------------------------------------------

"$launch" -n 2 run.yaml $async checkpoint.path=stopped log.metrics=stop.jsonl train.steps=100000 \
    checkpoint.interval=50 >log 2>err &
pid=$!
until [ -d stopped/step-00000050 ] || ! kill -0 $pid; do sleep 0.05; done
kill -TERM $pid
wait $pid
ok "$([ $? != 0 ] && holds log 'stopped on request'; echo $?)" "a stop request waits for the save in flight"
at=$(sed -n 's/.*stopped on request at step \([0-9]*\).*/\1/p' log)
ok "$([ -n "$at" ] && [ -f "$(printf 'stopped/step-%08d/manifest.json' "$at")" ]; echo $?)" \
    "the step it stopped at (${at:-none}) is saved"
ok "$(ls stopped | grep -c tmp)" "nothing is left over"
echo "1..$n"
exit $bad
