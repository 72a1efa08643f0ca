#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Shard groups and nodes under a real srun: what would cross nodes unasked is refused with the options
# that fix it, and they do; the check of nodes.
# run: timeout=300
. "$TOP/tests/slurm/lib/cluster.sh"
cat >run.yaml <<END
model: {path: $TOP/examples/llama-tiny, init: random}
data: {path: $TOP/README.md, seq_len: 64}
train: {steps: 3, global_batch_size: 12}
fsdp: {sharding_strategy: HYBRID_SHARD}
log: {metrics: metrics.jsonl, interval: 1}
END
losses() { sed 's/.*"step": \([0-9]*\), "loss": \([^,]*\),.*/\1 \2/' "$1"; }
train() { # name, arguments of srun..., -- , of the launcher
    local name=$1 args=()
    shift
    while [ "$1" != -- ]; do args+=("$1") && shift; done
    shift
    step --mpi=none "${args[@]}" fsdp-launch run.yaml log.metrics="$name" "$@"
}

train block -N2 -n4 --ntasks-per-node=2 -m block --
[ $rc = 0 ] && grep -q "HYBRID_SHARD, 2 x 2 (replicate x shard)" log
ok $? "ranks in blocks: groups inside nodes"
train cyclic -N2 -n4 --ntasks-per-node=2 -m cyclic --
[ $rc = 2 ] && grep -q "ranks 0 and 2 are on node n. and rank 1 is not.*(srun --distribution=block), or .*--reorder" err
ok $? "dealt out in turn: refused, with what fixes it"
train reordered -N2 -n4 --ntasks-per-node=2 -m cyclic -- --reorder
[ $rc = 0 ] && grep -q "2 x 2 (replicate x shard)" log && cmp -s <(losses block) <(losses reordered)
ok $? "--reorder fixes it: the losses of ranks in blocks, to the last digit"
L=$BIN/tests/launcher/test_launch
echo "fake: {}" >c.yaml
step --mpi=none -N3 -n6 --ntasks-per-node=2 -m cyclic "$L" --reorder c.yaml
[ $rc = 0 ] && [ "$(sed 's/^rank \(.\) of 6, local \(.\) of 2, node \(.\) of 3, .*/\1\2\3/' log | sort | xargs)" = \
    "000 110 201 311 402 512" ]
ok $? "ranks, local ranks and nodes are in order"
step --mpi=none -N2 -n2 -m cyclic "$L" --reorder --ranks-per-task 2 c.yaml
[ $rc = 0 ] && grep -q "rank 2 of 4, local 0 of 2, node 1 of 2" log
ok $? "with one task a node, too"
# shellcheck disable=SC2016
step --mpi=none -N2 -n4 --ntasks-per-node=2 -m cyclic fsdp-launch --reorder -- sh -c 'echo $RANK $LOCAL_RANK $NODE_RANK $SLURM_NODEID'
[ $rc = 0 ] && [ "$(sort log | paste -sd,)" = "0 0 0 0,1 1 0 0,2 0 1 1,3 1 1 1" ]
ok $? "a program gets the new numbers"
# shellcheck disable=SC2016
step --mpi=none -N2 -n4 --ntasks-per-node=2 -m cyclic sh -c 'f=; [ $SLURM_PROCID = 0 ] && f=--reorder; exec "$0" $f c.yaml' "$L"
[ $rc = 0 ] && grep -q "rank 1 of 4, local 1 of 2, node 0 of 2" log
ok $? "rank 0 decides for all"

train uneven -N2 -n3 --ntasks-per-node=2 --
[ $rc = 2 ] && grep -q "node n. has 2 ranks and node n. has 1: give each node the same number (srun --ntasks-per-node" err
ok $? "uneven nodes are refused with what fixes it"
train between -N2 -n6 --ntasks-per-node=3 -- fsdp.shard_size=2
[ $rc = 2 ] && grep -q "shard groups would cross nodes; choose a shard_size that divides 3 or is a multiple of it" err
ok $? "groups that lie across a node's edge are refused"
train whole -N2 -n3 -m block -- fsdp.shard_size=3
[ $rc = 0 ] && grep -q "1 x 3 (replicate x shard)" log
ok $? "one group of all ranks is not, on uneven nodes either"
train asked -N2 -n6 --ntasks-per-node=3 -- fsdp.shard_size=6
[ $rc = 0 ] && grep -q "1 x 6 (replicate x shard)" log
ok $? "groups over whole nodes that were asked for are not"

# ---- cores
core=$(taskset -pc $$ | sed 's/.*: \([0-9]*\).*/\1/')
step --mpi=none -N1 -n2 taskset -c "$core" fsdp-launch -v run.yaml log.metrics=crowd
crowded="may use 1 core, which 2 ranks share, although its machine has enough for all: srun --cpus-per-task"
[ "$(getconf _NPROCESSORS_ONLN)" -ge 2 ] || crowded=
[ $rc = 0 ] && grep -q "its cores  *$core, 1 of [0-9]*, shared by 2 ranks" log && grep -q "$crowded" err
ok $? "ranks that crowd on one core are warned of"

step --mpi=none -N1 -n2 env CUDA_VISIBLE_DEVICES=0 SLURM_GPUS_PER_TASK=1 fsdp-launch run.yaml log.metrics= fsdp.device=cpu
[ $rc = 0 ] && [ "$(grep -c "warning: --gpus-per-task shows each of the 2 ranks of a node one GPU alone" err)" = 1 ]
ok $? "GPUs that are hidden from each other are warned of"

# ---- the check of nodes
step --mpi=none -N2 -n4 --ntasks-per-node=2 fsdp-launch --check
[ $rc = 0 ] && [ "$(grep -c "n. *2 ranks, .*inside .* GB/s, across .* GB/s" log)" = 2 ] && grep -q "nodes are well: 4 ranks on 2 nodes" log
ok $? "--check: two nodes that are alike are well"
step --mpi=none -N2 -n4 --ntasks-per-node=2 fsdp-launch --check run.yaml checkpoint.path=not/yet
[ $rc = 0 ] && [ "$(grep -c "checkpoints .* GB/s" log)" = 2 ] && [ ! -e not ] && ! compgen -G ".check-*" >noise && [ ! -e metrics.jsonl ]
ok $? "with a configuration the checkpoint folder is tried, and nothing stays"
# shellcheck disable=SC2016
step --mpi=none -N3 -n3 --ntasks-per-node=1 -w n0,n1,n2 sh -c '[ $SLURM_NODEID != 1 ] || ulimit -n 300; exec fsdp-launch --check'
[ $rc = 1 ] && grep -q "error: n1: limit of open files (ulimit -n): 300 files, elsewhere" err && grep -E -q "^bad nodes: (.*,)?n1(,.*)?$" log
ok $? "a node with a lower limit is named, with status 1"
# The node whose path is a file.
echo text >file
mkdir folder
# shellcheck disable=SC2016
step --mpi=none -N2 -n2 --ntasks-per-node=1 -w n0,n1 sh -c 'p=folder; [ $SLURM_NODEID = 0 ] || p=file/below; exec fsdp-launch --check run.yaml checkpoint.path=$p'
[ $rc = 1 ] && grep -q "error: n1: cannot create .file/below/.check-.*: Not a directory" err && grep -q "^bad nodes: n1$" log
ok $? "so is one that cannot write to the checkpoint folder"
# A job begins with the cheap part of it: here the second node has a file where the folder should be.
mkdir elsewhere
echo text >elsewhere/ck
# shellcheck disable=SC2016
step --mpi=none -N2 -n4 --ntasks-per-node=2 -w n0,n1 sh -c '[ $SLURM_NODEID = 0 ] || cd elsewhere; exec "$@"' sh \
    fsdp-launch "$PWD/run.yaml" checkpoint.path=ck/here log.metrics=
[ $rc = 1 ] && [ "$(tail -n 1 log)" = "bad nodes: n1" ] &&
    [ "$(grep -c "^fsdp-launch: .*node n1 is not fit for this job: .*ck/here.*: Not a directory; .*--exclude=n1" err)" = 1 ] && [ ! -e ck ]
ok $? "a job refuses to begin with such a node, and names it"
# shellcheck disable=SC2016
step --mpi=none -N2 -n2 --ntasks-per-node=1 -w n0,n1 sh -c '[ $SLURM_NODEID = 0 ] || ulimit -n 300; exec "$@"' sh \
    fsdp-launch run.yaml log.metrics=
[ $rc = 0 ] && grep -q "warning: n1: .*ulimit -n" err
ok $? "a lower limit is a warning"
# shellcheck disable=SC2016
step --mpi=none -N2 -n2 --ntasks-per-node=1 sh -c '[ $SLURM_NODEID = 1 ] && sleep 8 || exec fsdp-launch --timeout 3 --check'
[ $rc != 0 ] && grep -q "waited .* s at the rendezvous for rank 1 on n." err
ok $? "a rank that does not come is named"
step --mpi=none -N2 -n2 --ntasks-per-node=1 fsdp-launch --check --ranks-per-task 2
[ $rc = 0 ] && grep -q "nodes are well: 4 ranks on 2 nodes" log
ok $? "one task a node, too"

echo "1..$n"
exit $bad
