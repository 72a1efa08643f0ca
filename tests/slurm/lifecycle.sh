#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What clusters do to jobs, through slurm/'s scripts: each time the job continues by itself, and ends with
# the losses of a run that nothing happened to, to the last digit.
# run: timeout=600
. "$TOP/tests/slurm/lib/cluster.sh"
. "$TOP/tests/slurm/lib/jobs.sh"
cat >run.yaml <<END
model: {path: $TOP/examples/llama-tiny, init: random}
data: {path: [$TOP/README.md, $TOP/docs], seq_len: 64}
train: {steps: 800, global_batch_size: 8}
fsdp: {sharding_strategy: HYBRID_SHARD}
checkpoint: {path: ck, interval: 100}
log: {metrics: metrics.jsonl, interval: 100}
END
fresh calm
submit calm
ends calm
[ "$(state)" = COMPLETED ] && [ "$(steps calm)" = 800 ] && grep -q "done: 800 steps" err && grep -q "the job ends" err
ok $? "a job that nothing happens to"
[ "$(losses calm | tail -n 1)" = "$(cd calm && fsdp-launch -n 4 --nodes 2 run.yaml checkpoint.path=one log.metrics=one.jsonl >log 2>err; sed -n '800s/.*"step": \([0-9]*\), "loss": \([^,]*\),.*/\1 \2/p' one.jsonl)" ]
ok $? "is the same as the ranks on one machine"

# Stopped in its tracks, wherever that is.
fresh usr1
submit usr1
at_step usr1 120
kill -USR1 "$(rank_pid 2)"
as_if_nothing usr1 "SIGUSR1 to rank 2 alone"
grep -q "stopped on request at step" err && grep -q "queueing job $job again" err && [ "$(grep -c queueing err)" = 1 ]
ok $? "saved and queued again, once"

fresh batch
submit batch
at_step batch 120
scancel --signal=USR1 --batch "$job"
as_if_nothing batch "a warning to the batch script"

fresh requeue
submit requeue
at_step requeue 120
scontrol requeue "$job"
as_if_nothing requeue "scontrol requeue"

fresh killed
submit killed
at_step killed 120
kill -KILL "$(rank_pid 3)"
as_if_nothing killed "SIGKILL of rank 3"
grep -q "rank 3 on n1 is lost" err
ok $? "which was named"

fresh root
submit root
at_step root 120
kill -KILL "$(rank_pid 0)"
as_if_nothing root "SIGKILL of rank 0"

# Asked to by its owner.
fresh cancelled
submit cancelled -- train.steps=100000
at_step cancelled 20
scancel "$job"
ends cancelled
sleep 1
[ "$(state)" = CANCELLED ] && [ "$(squeue -h | wc -l)" = 0 ] && grep -q "not queued again from here" err
ok $? "scancel ends it for good"

fresh switches
submit switches -- checkpoint.interval=0
at_step switches 50
touch switches/ck/checkpoint-now
for t in $(seq 100); do [ -e switches/ck/checkpoint-now ] && sleep 0.05 || break; done # seen: else both count as one
at_step switches 150
touch switches/ck/stop
as_if_nothing switches "checkpoint-now, then stop"
[ "$(grep -c '^saved' err)" = 3 ] && [ ! -e switches/ck/stop ] && [ ! -e switches/ck/checkpoint-now ]
ok $? "each switch saved once and is gone"

# Started again in vain.
fresh vain
submit vain -- checkpoint.interval=0 train.steps=100000
at_step vain 5
for i in 1 2 3; do
    kill -KILL "$(rank_pid 1)"
    rm -f vain/metrics.jsonl
    for t in $(seq 300); do [ "$(grep -c "queueing job $job again" vain/out)" = $i ] && break || sleep 0.1; done
    [ $i = 3 ] || at_step vain 5
done
ends vain
[ "$(state)" = FAILED ] && grep -q "restart 3 of job $job begins at step 0 for the 4th time" err
ok $? "three restarts without progress are enough"

fresh lost
submit lost
at_step lost 120
scontrol hold "$job" 2>/dev/null
scontrol requeue "$job"
for t in $(seq 100); do [ "$(state)" = PENDING ] && break || sleep 0.1; done
mkdir lost/elsewhere && mv lost/ck/step-* lost/elsewhere
scontrol release "$job"
ends lost
[ "$(state)" = FAILED ] && grep -q "restart 1 of job $job finds no checkpoint in ck, although one was saved" err
ok $? "a restart that finds no checkpoint does not begin anew"

# An array: each element continues.
fresh chain
script=array-chain.sbatch submit chain --array=1-3%1
at_step chain 120
kill -USR1 "$(job=$(squeue -h -t running -o %A) rank_pid 0)"
for t in $(seq 900); do [ "$(steps chain)" = 800 ] && [ -z "$(squeue -h)" ] && break || sleep 0.1; done
cp chain/out err
cmp -s <(losses calm) <(losses chain)
ok $? "the next element of an array continues: bit-equal"

job=$(sbatch --parsable --wait --output="$PWD/smoke.out" "$TOP/slurm/smoke-2node.sbatch" "$PWD")
cp smoke.out err
grep -q "smoke: all is well" smoke.out
ok $? "the two-node smoke test"

echo "1..$n"
exit $bad
