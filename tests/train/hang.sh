#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A rank that hangs, one that is stopped, and one that is slow: the job ends by itself, or says which.
# run: long
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/train.sh"
unset RANK WORLD_SIZE
cat >run.yaml <<END
model: {path: $TOP/examples/llama-tiny, init: random}
data: {path: [$TOP/README.md], seq_len: 64}
train: {steps: 1000000, global_batch_size: 8}
fsdp: {sharding_strategy: HYBRID_SHARD, hang_timeout: 10}
log: {interval: 1000}
END
start() { # overrides...
    : >log
    timeout -k 5 250 "$BIN/fsdp-launch" -n 4 --nodes 2 run.yaml "$@" >log 2>err &
    launcher=$!
}
running() {
    until grep -q "^step" log || ! kill -0 $launcher; do sleep 0.1; done
}

# Rank 0 writes its metrics to a pipe that nobody reads: when it is full, after some steps, it hangs.
mkfifo pipe
sleep 1000 <>pipe &
reader=$!
head -c 64000 /dev/zero >pipe
start log.metrics=pipe
wait $launcher
rc=$?
kill $reader
wait $reader 2>/dev/null
[ $rc = 76 ] && grep -q "no progress for .* s; where each rank is:" err
ok $? "a hang ends the job"
grep -q "ranks\? .* on .*node1: step .*waits for other ranks" err
ok $? "it is said where the others wait"
[ "$(grep -c "rank 0 on .*node0 hangs: no progress for .* s at step" err)" = 1 ]
ok $? "and, once, who is behind"

start log.interval=1
running
kill -STOP "$(rank_pid 2)"
wait $launcher
rc=$?
[ $rc = 76 ] && [ "$(grep -c "no sign of life for 14 s from rank 2 on .*node1: stopped, or its machine hangs" err)" = 1 ]
ok $? "a stopped rank is named, once"
[ "$(grep -c '^error: rank [013] on [^ ]*node[01]: step [0-9]*, .*, for [0-9]* s$' err)" -ge 1 ]
ok $? "and who waits for it says where, if the job's end leaves it the time"

start log.interval=1
running
kill -STOP "$(rank_pid 0)"
wait $launcher
rc=$?
[ $rc = 76 ] && grep -q "no sign of life for 14 s from rank 0 on [^ ]*node0: stopped, or its machine hangs" err
ok $? "and so is rank 0, whom the others would ask"

echo "1..$n"
exit $bad
