#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# fsdp-launch --sbatch on a real Slurm: scripts that sbatch takes, jobs that train and are queued again, and
# what a partition cannot give. n1 to n3 have four GPUs that do nothing.
# run: long
# run: timeout=300
export GPUS=4 EXTRA=RequeueExit=1
export CONF='PartitionName=one Nodes=n0 MaxTime=2-00:00:00
PartitionName=lone Nodes=n[0-3] MaxTime=INFINITE MaxNodes=1
PartitionName=four Nodes=n[1-3] MaxTime=INFINITE
PartitionName=off Nodes=n0 State=DOWN
PartitionName=few Nodes=n[0-3] AllowAccounts=physics'
. "$TOP/tests/slurm/lib/cluster.sh"
. "$TOP/tests/slurm/lib/jobs.sh"
unset FSDP_ENV FSDP_BIN
mkdir "my runs" && cd "my runs" || exit 1
cat >run.yaml <<END
model: {path: $TOP/examples/llama-tiny, init: random}
data: {path: $TOP/README.md, seq_len: 64}
train: {steps: 20, global_batch_size: 48}
fsdp: {sharding_strategy: HYBRID_SHARD}
checkpoint: {path: checkpoints, interval: 10}
log: {metrics: metrics.jsonl}
END
launch() { # arguments...: rc, log, err
    timeout 100 fsdp-launch "$@" >log 2>err
    rc=$?
}
first_line() { [ "$(head -n 1 log)" = "$1" ]; }
takes() { sbatch --test-only "$1" 2>&1 | tee -a log | grep -q "to start at"; }

launch --sbatch run.yaml --nodes 2 fsdp.device=cpu
[ $rc = 0 ] && first_line "run.sbatch: 2 nodes x 2 = 4 ranks of 8 CPUs, partition test, 01:00:00" &&
    grep -q "^submit it: sbatch run.sbatch$" log && takes run.sbatch
ok $? "a script for CPUs, which sbatch takes"
[ "$(cat err)" = "fsdp-launch: note: this Slurm queues jobs again after exit status 1 (RequeueExit), so a run that fails by itself starts again, too" ]
ok $? "a setting of the cluster that starts failed runs again is noted"
launch --sbatch=absent run.yaml --nodes 2 fsdp.device=cpu model.path=nothere
[ $rc = 0 ] && grep -q "warning: command line: model.path: there is no nothere here" err && ! grep -q "data.path\|saves nothing" err
ok $? "a model that is not there is named before the job waits for its turn"
launch --sbatch=absent run.yaml --nodes 2 fsdp.device=cpu "data.path=[$TOP/README.md, nodata]" data.eval_path=noeval
[ $rc = 0 ] && grep -q "warning: command line: data.path: there is no nodata here" err &&
    grep -q "warning: command line: data.eval_path: there is no noeval here" err && ! grep -q "no .*README.md here" err
ok $? "data, too"
launch --sbatch=lost run.yaml --nodes 2 fsdp.device=cpu checkpoint.path=
[ $rc = 0 ] && grep -q "warning: checkpoint.path is not set, so the job saves nothing" err && grep -q "^#SBATCH --no-requeue$" lost &&
    grep -q "so the run saves nothing" lost && ! grep -q "it resumes\| --requeue" lost && takes lost
ok $? "without checkpoints the script promises none, and does not queue the job again"
launch --sbatch=- run.yaml --output "$PWD/none/%j.out"
[ $rc = 0 ] && [ ! -e none ] && grep -q "warning: --output: there is no folder $PWD/none. Create it before" err
ok $? "a script on standard output creates nothing"
if command -v shellcheck >/dev/null; then
    shellcheck run.sbatch >log
    ok $? "shellcheck has nothing to say of the script"
fi
launch --sbatch run.yaml --nodes 3
[ $rc = 0 ] && first_line "run.sbatch: 3 nodes x 4 = 12 ranks of 4 CPUs, 4 GPUs a node, partition test, 01:00:00" &&
    grep -q "^#SBATCH --gpus-per-node=4$" run.sbatch && takes run.sbatch
ok $? "a rank for each GPU where enough nodes have some"
launch --sbatch run.yaml --nodes 4
[ $rc = 0 ] && first_line "run.sbatch: 4 nodes x 2 = 8 ranks of 8 CPUs, partition test, 01:00:00" && takes run.sbatch
ok $? "CPUs where not enough have"
launch --sbatch=half run.yaml --nodes 3 --gpus-per-node 2 --partition four --time 3-00
[ $rc = 0 ] && first_line "half: 3 nodes x 2 = 6 ranks of 4 CPUs, 2 GPUs a node, partition four, 3-00:00:00" &&
    grep -q "^#SBATCH --mem=1000M$" half && takes half
ok $? "half of each node's GPUs take half of its CPUs and memory"
launch --sbatch=- run.yaml --gpus-per-node 0 --partition four
[ $rc = 0 ] && grep -q "^    fsdp.device=cpu &$" log && first_line "#!/bin/bash" && [ ! -e ./- ]
ok $? "to standard output; without GPUs although the nodes have some"

refuses() { # what, text, arguments...
    local what=$1 text=$2
    shift 2
    rm -f run.sbatch
    launch --sbatch run.yaml "$@"
    [ $rc = 2 ] && [ "$(cat err)" = "fsdp-launch: $text" ] && [ ! -e run.sbatch ]
    ok $? "refused: $what"
}
refuses "a file as the folder of the output" \
    "--output: $PWD/run.yaml is a file and not a folder, so the job could not write its output there. Type --output with another folder" \
    --output run.yaml/%j.log
mkdir of-%x
refuses "a folder as the output" "--output: none/ names a folder. Type a file in it, such as none/%x-%j.out" --output none/
refuses "a folder that is there" "--output: $PWD/of-%x is a folder. Type a file in it, such as $PWD/of-%x/%x-%j.out" --output of-%%x
refuses "too many nodes" \
    "--nodes 5: partition test has 4 nodes. Type --nodes 4 or fewer, or another --partition" --nodes 5
refuses "more nodes than a job may have" \
    "--nodes 2: partition lone gives a job at most 1 (MaxNodes). Type --nodes 1, or another --partition" --nodes 2 --partition lone
refuses "too many tasks" \
    "--ntasks-per-node 17: nodes of partition one have 16 CPUs at most. Type --ntasks-per-node 16 or fewer" \
    --partition one --ntasks-per-node 17
refuses "too many GPUs" \
    "--gpus-per-node 8: nodes of partition test have 4 GPUs at most. Type --gpus-per-node 4" --gpus-per-node 8
refuses "too few nodes with GPUs" \
    "--nodes 4: 3 of the 4 nodes of partition test have 4 GPUs and 4 CPUs. Type --nodes 3, or ask less of each node" \
    --nodes 4 --gpus-per-node 4
refuses "no GPUs" \
    "--gpus-per-node: nodes of partition one have no GPUs that Slurm gives. Type --partition with another, or leave --gpus-per-node out" \
    --partition one --gpus-per-node 1
refuses "too long" \
    "--time 3:00:00: partition test gives a job at most 01:00:00 (MaxTime). Type --time 01:00:00: the run saves before its time is over, and the job is queued again" \
    --time 3:00:00
refuses "a partition that is down" \
    "partition off is DOWN and starts no jobs now. Type --partition with another of: test, one, lone, four, few" --partition off
refuses "a partition that is not there" \
    "--partition gpu: this cluster has no such partition. Type one of: test, one, lone, four, off, few" --partition gpu
refuses "another account" \
    "--account chem: partition few takes jobs of other accounts. Type --account with one of: physics" --partition few --account chem
refuses "ranks without a row" \
    "run.yaml:3: train.global_batch_size: a step has 48 rows for 64 ranks, so 16 ranks would have none. Type train.global_batch_size=64 or a multiple of it, or ask for fewer ranks" \
    --nodes 4 --ntasks-per-node 16 fsdp.device=cpu
refuses "a mistake in the configuration" \
    "command line: train.steps: '-1' is not allowed; allowed: auto, or a whole number of at least 0" train.steps=-1
refuses "a quote in a line that sbatch reads" \
    "--account a\"b: sbatch reads no quotes, backslashes or ends of lines there. Type another" --account 'a"b'

mkdir bin && for tool in sh timeout; do ln -s "$(command -v $tool)" bin/; done
PATH=$PWD/bin "$BIN/fsdp-launch" --sbatch run.yaml >log 2>err
[ $? = 2 ] && grep -q "no sinfo on PATH, so this is no machine of a Slurm cluster. Type it on the cluster's login node" err
ok $? "a machine without Slurm"
printf '#!/bin/sh\necho "slurm_load_node: Unable to contact slurm controller" >&2\nexit 1\n' >bin/sinfo && chmod +x bin/sinfo
PATH=$PWD/bin "$BIN/fsdp-launch" --sbatch run.yaml >log 2>err
[ $? = 1 ] && grep -q "sinfo: slurm_load_node: Unable to contact slurm controller. Try again when 'sinfo' answers" err
ok $? "a Slurm that does not answer"
rm bin/*

echo "mine" >run.sbatch
launch --sbatch run.yaml
[ $rc = 2 ] && grep -q "run.sbatch is there already, and --sbatch has not written it. Type --sbatch=FILE with another name" err &&
    [ "$(cat run.sbatch)" = mine ]
ok $? "another's file is left alone"
rm run.sbatch
launch --sbatch run.yaml
sed -i 's/^##SBATCH --qos=NAME/#SBATCH --qos=mine/' run.sbatch && cp run.sbatch edited
launch --sbatch run.yaml
[ $rc = 2 ] && cmp -s run.sbatch edited && [ "$(cat err)" = "fsdp-launch: run.sbatch was edited since --sbatch wrote it. \
Type sbatch run.sbatch to submit it as it is, --sbatch=FILE to write another, or --overwrite to lose the edits" ]
ok $? "a script that the user edited is left alone"
launch --sbatch run.yaml --overwrite && [ $rc = 0 ] && ! grep -q "qos=mine" run.sbatch
ok $? "--overwrite replaces it"
rm run.sbatch
launch --sbatch run.yaml --nodes 2 --ntasks-per-node 5 fsdp.device=cpu
[ $rc = 0 ] && grep -q "warning: run.yaml:3: train.global_batch_size: 48 rows on 10 ranks waste 4.0 % of the computation on padding; train.global_batch_size=50 wastes nothing" err
ok $? "a batch that the ranks do not divide is warned of"
scontrol update nodename=n2,n3 state=drain reason=test
launch --sbatch run.yaml --partition four --nodes 2
[ $rc = 0 ] && grep -q "note: 2 of the 3 nodes that fit are down or drained; the job waits until 2 are up" err
ok $? "nodes that are drained are noted"
scontrol update nodename=n2,n3 state=resume
launch --sbatch run.yaml --partition few
[ $rc = 0 ] && grep -q "note: partition few takes jobs of some accounts alone; if your own is not among them, type --account with one of: physics; this Slurm" err
ok $? "an account that may be wrong, too"

submit_here() { # arguments...: job
    launch --sbatch run.yaml --submit --nodes 2 --ntasks-per-node 2 fsdp.device=cpu "$@"
    job=$(sed -n 's/^job \([0-9]*\) is in the queue$/\1/p' log)
}
submit_here
[ $rc = 0 ] && [ -n "$job" ] && grep -q "^  its output       tail -F '$PWD/logs/run-$job.out'$" log &&
    grep -q "^  its state        squeue --jobs=$job$" log
ok $? "--submit says the job's number and how to watch it"
mkdir watch && touch watch/out && ends watch
cp "logs/run-$job.out" err
[ "$(state)" = COMPLETED ] && grep -q "HYBRID_SHARD, 2 x 2 (replicate x shard)" err && grep -q "done: 20 steps" err &&
    [ -e checkpoints/step-00000020 ]
ok $? "it trains on two nodes, from a folder with a blank"
rm -r checkpoints metrics.jsonl
submit_here train.steps=600 checkpoint.interval=0 --output 'of/%x.%j'
at_step . 20
eval "$(sed -n "s/^  save, run again  //p" log)"
for t in $(seq 600); do [ "$(said Restarts)" = 1 ] && [ "$(state)" = COMPLETED ] && break || sleep 0.2; done
cp "of/run.$job" err
[ "$(said Restarts)" = 1 ] && [ "$(state)" = COMPLETED ] && grep -q "queueing job $job again" err &&
    grep -q "done: 600 steps" err && [ "$(steps .)" = 600 ]
ok $? "the line that saves and runs it again does: queued again, resumed, done"
printf '#!/bin/sh\necho "sbatch: error: Invalid account" >&2\nexit 1\n' >bin/sbatch && chmod +x bin/sbatch
PATH=$PWD/bin:$PATH launch --sbatch run.yaml --submit
[ $rc = 2 ] && grep -q "^sbatch: error: Invalid account$" err && [ -s run.sbatch ] &&
    grep -q "sbatch did not take run.sbatch (its reason is above). Edit the script and type: sbatch run.sbatch" err
ok $? "what sbatch refuses is said, and the script stays"
echo "1..$n"
exit $bad
