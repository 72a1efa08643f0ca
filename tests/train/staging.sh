#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# run: timeout=600
# Checkpoints by way of the nodes' own folders. Two nodes are ranks with a folder each.
set -u
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/train.sh"
. "$TOP/tests/lib/disk.sh"
steps() { (cd "$1" && echo step-*) | sed 's/step-0*//g'; }
staged() { (cd "$1"/* && echo step-*) | sed 's/step-0*//g'; } # of one node

make_input
cat >run.yaml <<END
model: {path: model, init: random, seed: 1}
data: {path: text, seq_len: 32}
train: {steps: 8, global_batch_size: 12, seed: 2, threads: 1}
optim: {lr: 3.0e-3, schedule: constant, warmup_steps: 3}
fsdp: {timeout: 120}
checkpoint: {path: ck, interval: 2, fsync: false}
log: {metrics: m.jsonl}
END
nodes="-n 4 --nodes 2"
at="checkpoint.staging=$PWD/nodes/%n"
run $nodes run.yaml checkpoint.path=sync log.metrics=sync.jsonl checkpoint.interval=1
ok $? "4 ranks on 2 nodes save to one folder"

# ---- the way there ---------------------------------------------------------------------------------

for async in false true; do
    rm -rf nodes
    run $nodes run.yaml "$at" checkpoint.path=by-$async log.metrics=by-$async.jsonl checkpoint.async=$async
    ok "$([ $? = 0 ] && [ "$(steps by-$async)" = "2 4 6 8" ]; echo $?)" "async: $async; all staged steps get there"
    wrong=0
    for step in 2 4 6 8; do same sync/step-0000000$step by-$async/step-0000000$step || wrong=1; done
    ok "$([ $wrong = 0 ] && "$BIN/ckpt-verify" by-$async >verify 2>&1; echo $?)" "with the state that they have without"
    ok "$(cmp -s <(numbers sync.jsonl) <(numbers by-$async.jsonl); echo $?)" "training was not disturbed"
    ok "$([ "$(staged nodes/0)" = 8 ] && [ "$(staged nodes/1)" = 8 ]; echo $?)" "each node keeps the newest"
done
ok "$([ "$(cd nodes && find . -name '*.safetensors' | sort | sed 's|/by[^/]*/|/|' | tr '\n' ' ')" = "$(for node in 0 1; do
    for kind in model optim; do
        for r in 1 2; do
            printf './%d/step-00000008/%s/shard-0000%d-model-00001-of-00001.safetensors ' $node $kind $((2 * node + r))
        done
    done
done)" ]; echo $?)" "each holds the files of its own ranks, once"
ok "$(holds log "staged $PWD/nodes/0/" && holds log ', from staging)'; echo $?)" "the log says both"
ok "$(holds by-true.jsonl '"flush_s": '; echo $?)" "the metrics tell how long the way took"
rm -rf nodes
run $nodes run.yaml checkpoint.staging="$PWD/nodes" checkpoint.path=shared checkpoint.staging_keep=3 log.metrics=
ok "$([ $? = 0 ] && same sync/step-00000008 shared/step-00000008 && [ "$(staged nodes)" = "4 6 8" ]; echo $?)" \
    "nodes that see one folder share it; three are kept"
run $nodes run.yaml checkpoint.staging="$PWD/nodes" checkpoint.path=zst checkpoint.compress=zstd checkpoint.keep=1 log.metrics=
ok "$([ $? = 0 ] && same sync/step-00000008 zst/step-00000008 && [ "$(steps zst)" = 8 ] &&
    "$BIN/ckpt-verify" zst >verify 2>&1; echo $?)" "compressed, next to another run's"
run -n 1 run.yaml checkpoint.staging="$PWD/percent/%%h-%n-%%" checkpoint.path=percent.ck log.metrics=
ok "$([ $? = 0 ] && [ "$(ls percent)" = "%h-0-%" ] && holds log "staged $PWD/percent/%h-0-%/"; echo $?)" \
    "%% is a percent sign, whatever follows it"

# ---- what a start does with it ---------------------------------------------------------------------

# As if killed behind step 6: staged on both nodes, in the store there is step 4.
rm -rf nodes
run $nodes run.yaml "$at" checkpoint.path=first train.steps=6 checkpoint.staging_keep=2 log.metrics=first.jsonl
rm -r first/step-00000006
cp -r first first.as && cp -r nodes nodes.as && cp first.jsonl first.jsonl.as
again() { rm -rf first nodes && cp -r first.as first && cp -r nodes.as nodes && cp first.jsonl.as first.jsonl; }
finish() { run "$@" run.yaml "$at" checkpoint.path=first log.metrics=first.jsonl; }

again
finish $nodes
ok "$([ $? = 0 ] && holds log 'resumes from first/step-00000006' && holds log 'from staging)'; echo $?)" \
    "what was staged is brought there and resumed from"
ok "$(same sync/step-00000006 first/step-00000006 && same sync/step-00000008 first/step-00000008 &&
    cmp -s <(numbers sync.jsonl) <(numbers first.jsonl); echo $?)" "and the run is the same to the bit"
again
finish -n 2 --nodes 2
ok "$([ $? = 0 ] && holds log 'resumes from first/step-00000006' && same sync/step-00000006 first/step-00000006; echo $?)" \
    "by another number of ranks, too"
again
rm -r nodes/1
finish $nodes
ok "$([ $? = 0 ] && holds err 'step 6 was staged' && holds err 'is left out' && holds log 'resumes from first/step-00000004'; echo $?)" \
    "a lost node: it says so, and resumes from the store"
ok "$(same sync/step-00000008 first/step-00000008 && cmp -s <(numbers sync.jsonl) <(numbers first.jsonl); echo $?)" \
    "to the same end"
again
rm nodes/1/first-*/step-00000006/model/shard-00003*
finish $nodes
ok "$([ $? = 0 ] && holds err '1 of its ' && holds err 'shard-00003' && same sync/step-00000008 first/step-00000008; echo $?)" \
    "a lost file is named"
again
file=$(echo nodes/1/first-*/step-00000006/model/shard-00004*)
printf x | dd of="$file" bs=1 seek=5000 conv=notrunc 2>noise
finish $nodes
ok "$([ $? = 0 ] && holds err 'is damaged' && holds log 'resumes from first/step-00000004' &&
    same sync/step-00000008 first/step-00000008; echo $?)" "a damaged one is noticed and left out"
ok "$(find first nodes -name '*.tmp.*' | grep -c .)" "nothing is left over"
again
run $nodes run.yaml "$at" checkpoint.path=fresh log.metrics=
ok "$([ $? = 0 ] && same sync/step-00000008 fresh/step-00000008 && [ "$(cd nodes/0 && ls | wc -l)" = 2 ]; echo $?)" \
    "another run has a folder of its own"

# ---- kills -----------------------------------------------------------------------------------------

RANDOM=${KILL_SEED:-7}
wrong= n_killed=0
for _ in $(seq "${KILLS:-8}"); do
    rm -rf killed nodes killed.jsonl
    set -- $nodes run.yaml "$at" checkpoint.path=killed log.metrics=killed.jsonl
    call=$((30 + RANDOM % 170)) async=$([ $((RANDOM % 2)) = 0 ] && echo true || echo false)
    { CKPT_FAULT=kill:$call run "$@" checkpoint.async=$async && n_killed=$((n_killed - 1)); } 2>noise
    n_killed=$((n_killed + 1))
    for step in killed/step-????????; do
        [ ! -d "$step" ] || same "sync/${step#killed/}" "$step" || wrong="$wrong $call: $step is not whole;"
    done
    run "$@" || wrong="$wrong $call: the next start failed;"
    same sync/step-00000008 killed/step-00000008 && cmp -s <(numbers sync.jsonl) <(numbers killed.jsonl) ||
        wrong="$wrong $call: ends elsewhere;"
    [ -z "$(find nodes -name '*.tmp.*')" ] || wrong="$wrong $call: remains;"
done
ok "$([ -z "$wrong" ] && [ $n_killed -ge 3 ]; echo $?)" "$n_killed kills: nothing lost, nothing half made$wrong"

# ---- failures --------------------------------------------------------------------------------------

run $nodes run.yaml checkpoint.staging=/proc/none/%n checkpoint.path=never
ok "$([ $? != 0 ] && holds err 'checkpoint.staging' && holds err '/proc/none'; echo $?)" \
    "a folder that cannot be made is refused at the start"
run --print-config run.yaml checkpoint.staging=nvme
ok "$([ $? = 0 ] && run -n 1 run.yaml checkpoint.staging=nvme; [ $? != 0 ] && holds err 'not a whole path'; echo $?)" \
    "and one that is not whole, by its name"
run -n 1 run.yaml checkpoint.staging=/tmp/%j
ok "$([ $? != 0 ] && holds err "'%j'"; echo $?)" "or has a word that is not known"
wrong=
mkdir -p there && ln -sfn there link
nested() { # what the error says; settings
    run -n 1 run.yaml log.metrics= "${@:2}"
    [ $? != 0 ] && holds err "checkpoint.staging: " && holds err "$1" && [ -z "$(find there new -type f 2>noise)" ] || wrong="$wrong ${*:2}: $(cat err);"
}
nested "'$PWD/there' is checkpoint.path ('there')" checkpoint.path=there checkpoint.staging="$PWD/there"
nested "'$PWD/link/' is checkpoint.path ('$PWD/there/')" checkpoint.path="$PWD/there/" checkpoint.staging="$PWD/link/"
nested "'$PWD/there/0/x' lies in checkpoint.path ('link')" checkpoint.path=link checkpoint.staging="$PWD/there/%n/x"
nested "'$PWD/new/deep' lies in checkpoint.path ('new')" checkpoint.path=new checkpoint.staging="$PWD/new/deep"
ok "$([ -z "$wrong" ]; echo $?)" "or is that of the checkpoints, or in it$wrong"
run -n 1 run.yaml log.metrics= checkpoint.path=there/ck checkpoint.staging="$PWD/there"
ok "$([ $? = 0 ] && "$BIN/ckpt-verify" there/ck >verify 2>&1 && run -n 1 run.yaml log.metrics= checkpoint.path=ther checkpoint.staging="$PWD/there"; echo $?)" \
    "one next to it, or above it, is not"
why=$(why_no_disk own)
if [ -z "$why" ]; then
    mkdir -p small
    unshare -m sh -c 'mount -t tmpfs -o size=300k tmpfs small && exec "$@"' - "$launch" $nodes run.yaml \
        checkpoint.staging="$PWD/small/%n" checkpoint.path=full log.metrics= >log 2>err
    ok "$([ $? = 0 ] && holds err 'is not staged but saved to' && holds err ' free, and the checkpoint takes ' &&
        [ "$(steps full)" = "2 4 6 8" ] && same sync/step-00000008 full/step-00000008; echo $?)" \
        "where a node has no room, checkpoints continue to the store, with a warning"
else
    n=$((n + 1)) && echo "ok $n # SKIP $why"
fi

# ---- a stop ----------------------------------------------------------------------------------------

stop() { # name, settings: stopped behind step 50
    rm -rf nodes
    "$launch" $nodes run.yaml "$at" checkpoint.path="$1" log.metrics= train.steps=100000 checkpoint.interval=50 \
        "${@:2}" >log 2>err &
    local pid=$!
    for _ in $(seq 1200); do [ -d "$1/step-00000050" ] && break; sleep 0.1; done
    kill -TERM $pid
    wait $pid
}
stop stopped
at_step=$(sed -n 's/.*stopped on request at step \([0-9]*\).*/\1/p' log)
ok "$([ -n "$at_step" ] && holds log "resume from $(printf 'stopped/step-%08d' "$at_step")" &&
    "$BIN/ckpt-verify" "stopped/$(printf 'step-%08d' "$at_step")" >verify 2>&1; echo $?)" \
    "a stop waits for the way to the store (step ${at_step:-none})"
# A job that has less than ten seconds has no time for it, but for one that is quicker than that.
rm -rf nodes
SLURM_JOB_ID=77 SLURM_JOB_END_TIME=$(($(date +%s) + 5)) run $nodes run.yaml "$at" checkpoint.path=ended log.metrics=
status=$?
if holds err 'does not last for copying'; then
    [ $status != 0 ] && [ "$(staged nodes/0)" != '*' ] && run $nodes run.yaml "$at" checkpoint.path=ended log.metrics= &&
        holds log 'from staging'
else
    holds log 'stopped on request' && run $nodes run.yaml "$at" checkpoint.path=ended log.metrics= && holds log resumes
fi
ok "$([ $? = 0 ] && same sync/step-00000008 ended/step-00000008; echo $?)" "near the job's end a staged one is what is left"
echo "1..$n"
exit $bad
