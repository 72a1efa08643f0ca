#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Stops and kills of a run whose checkpoints are on their way to a store: in the background, and from
# the nodes' staging folders.
# run: timeout=900
set -u
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/train.sh"
at=$S3_TEST_URL/async-$$
tool() { "$BIN/$1" "${@:2}" >tool.log 2>tool.err; }

make_input
cat >run.yaml <<YAML
model: {path: model, init: random, seed: 1}
data: {path: text, seq_len: 32}
train: {steps: 8, global_batch_size: 4, seed: 2, threads: 1}
optim: {lr: 3.0e-3, schedule: constant, warmup_steps: 3}
checkpoint: {path: $at/run, interval: 2, keep: 2, async: true}
log: {metrics: m.jsonl}
YAML
nodes="-n 2 --nodes 2"
staging="checkpoint.staging=$PWD/nodes/%n"
run -n 2 run.yaml checkpoint.path=local checkpoint.keep=0 log.metrics=local.jsonl
ok $? "a run with checkpoints in a folder"

# ---- a stop while an upload runs ---------------------------------------------------------------------

# A save of every other step: one is on its way nearly always. The stop comes when a step next to one
# has been told of in the metrics.
stop() { # path, settings
    rm -f stop.jsonl
    "$launch" $nodes run.yaml checkpoint.path="$at/$1" train.steps=100000 log.metrics=stop.jsonl "${@:2}" >log 2>err &
    local pid=$!
    for _ in $(seq 1200); do grep -q '"saving": true' stop.jsonl 2>noise && break; sleep 0.05; done
    kill -TERM $pid
    wait $pid
}
for way in straight staged; do
    rm -rf nodes
    [ $way = staged ] && set -- "$staging" || set --
    stop stop-$way "$@"
    status=$?
    step=$(sed -n 's/.*stopped on request at step \([0-9]*\).*/\1/p' log)
    ok "$([ $status != 0 ] && [ -n "$step" ] && holds log "resume from $at/stop-$way/$(printf step-%08d "$step")"; echo $?)" \
        "$way: a stop waits for the upload, publishes and leaves (step ${step:-none})"
    tool ckpt-verify "$at/stop-$way"
    ok "$([ $? = 0 ] && tool ckpt-info --json "$at/stop-$way" && holds tool.log "\"step\": $step,"; echo $?)" "$way: what it left is whole"
    tool ckpt-info --gc --dry-run --older 0s --json "$at/stop-$way"
    ok "$([ $? = 0 ] && holds tool.log '"remains": []' && holds tool.log '"uploads": 0'; echo $?)" "$way: and all that is left"
done

# ---- staged ------------------------------------------------------------------------------------------

rm -rf nodes
run $nodes run.yaml "$staging" checkpoint.async=false
ok "$([ $? = 0 ] && tool ckpt-diff local/step-00000008 "$at/run" && tool ckpt-verify "$at/run" &&
    cmp -s <(numbers local.jsonl) <(numbers m.jsonl); echo $?)" "from the nodes' folders the store gets the same"
RANDOM=${KILL_SEED:-3}
wrong= n_killed=0
for i in $(seq "${KILLS:-6}"); do
    rm -rf nodes killed.jsonl
    set -- $nodes run.yaml "$staging" checkpoint.path="$at/killed-$i" log.metrics=killed.jsonl
    call=$((30 + RANDOM % 120)) async=$([ $((RANDOM % 2)) = 0 ] && echo true || echo false)
    { CKPT_FAULT=kill:$call run "$@" checkpoint.async=$async || n_killed=$((n_killed + 1)); } 2>noise
    run "$@" || wrong="$wrong $call: the next start failed;"
    tool ckpt-diff local/step-00000008 "$at/killed-$i" && tool ckpt-verify "$at/killed-$i" &&
        cmp -s <(numbers local.jsonl) <(numbers killed.jsonl) || wrong="$wrong $call: ends elsewhere;"
    tool ckpt-info --gc --older 0s "$at/killed-$i" && tool ckpt-info --gc --older 0s --json "$at/killed-$i" &&
        holds tool.log '"remains": []' && holds tool.log '"uploads": 0' || wrong="$wrong $call: remains;"
done
ok "$([ -z "$wrong" ] && [ $n_killed -ge 2 ]; echo $?)" "$n_killed kills on the way: nothing lost, nothing half made$wrong"
run $nodes run.yaml "$staging" checkpoint.path="$at/lost" train.steps=4
rm -rf nodes/1
run $nodes run.yaml "$staging" checkpoint.path="$at/lost"
ok "$([ $? = 0 ] && tool ckpt-diff local/step-00000008 "$at/lost"; echo $?)" "a node whose disk is lost costs nothing that the store has"
echo "1..$n"
exit $bad
