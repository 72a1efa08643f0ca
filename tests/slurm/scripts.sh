#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The scripts of slurm/ as a site has them: a copy in which env.sh alone was edited, submitted from the
# folder above.
# run: timeout=600
. "$TOP/tests/slurm/lib/cluster.sh"
unset FSDP_ENV FSDP_BIN FSDP_MPI FSDP_SRUN_ARGS FSDP_RUN
PATH=${PATH#"$BIN":} # env.sh has it
cp -r "$TOP/slurm" slurm-scripts && mkdir site && mv slurm-scripts site/slurm
sed -i "s|^: \"\${FSDP_BIN:=}\"|: \"\${FSDP_BIN:=$BIN}\"|;s|^: \"\${FSDP_SRUN_ARGS:=}\"|: \"\${FSDP_SRUN_ARGS:=--cpu-bind=none}\"|" site/slurm/env.sh
[ "$(diff -rq "$TOP/slurm" site/slurm | wc -l)" = 1 ] && [ "$(diff "$TOP/slurm/env.sh" site/slurm/env.sh | grep -c '^>')" = 2 ]
ok $? "two lines of env.sh are the site's"
cd site || exit 1
cat >run.yaml <<END
model: {path: $TOP/examples/llama-tiny, init: random}
data: {path: $TOP/README.md, seq_len: 64}
train: {steps: 20, global_batch_size: 8}
fsdp: {sharding_strategy: HYBRID_SHARD}
checkpoint: {path: checkpoints, interval: 10}
END
submit() { # arguments of sbatch...: rc, and its output as log
    timeout 300 sbatch --quiet --wait --output="$PWD/out" "$@" 2>err
    rc=$?
    mv out log
}

submit -N2 --ntasks-per-node=2 slurm/train.sbatch run.yaml checkpoint.path=trained
[ $rc = 0 ] && grep -q "HYBRID_SHARD, 2 x 2 (replicate x shard)" log && grep -q "done: 20 steps" log && [ -e trained/step-00000020 ]
ok $? "train.sbatch"
submit -N2 --ntasks-per-node=2 --array=1-2%1 slurm/array-chain.sbatch run.yaml checkpoint.path=chained
[ $rc = 0 ] && [ -e chained/step-00000020 ] && [ -z "$(squeue -h)" ]
ok $? "array-chain.sbatch"
submit slurm/merge.sbatch trained/step-00000020 weights --dtype bf16
[ $rc = 0 ] && [ -s weights/model.safetensors ]
ok $? "merge.sbatch"
submit slurm/reshard.sbatch trained/step-00000020 for-three --world 3
[ $rc = 0 ] && "$BIN/ckpt-verify" for-three >log 2>err
ok $? "reshard.sbatch"
submit slurm/smoke-2node.sbatch
[ $rc = 0 ] && grep -q "smoke: all is well" log
ok $? "smoke-2node.sbatch"
FSDP_MPI=none submit -N2 --ntasks-per-node=2 slurm/train.sbatch run.yaml checkpoint.path=other
[ $rc = 0 ] && grep -q "started by slurm" log
ok $? "FSDP_MPI=none in sbatch's environment goes before env.sh"
submit -N1 -n1 slurm/train.sbatch
[ $rc = 2 ] && grep -q "usage: sbatch train.sbatch" log
ok $? "train.sbatch without a configuration says how"
(cd slurm && submit -N1 -n1 train.sbatch ../run.yaml; [ $rc = 2 ] && grep -q "submit from the folder above slurm/, or set FSDP_ENV" log)
ok $? "from elsewhere it says what it does not find"

# No container runs here (pyxis is a plugin of srun): what the script would start, and what it does after.
cat >>slurm/env.sh <<'END'
fsdp_srun() { echo "${FSDP_SRUN[@]}" "$@"; return "${WOULD_END:-0}"; }
END
FSDP_IMAGE=example.org/fsdp:1 submit -N2 --ntasks-per-node=2 slurm/train-container.sbatch run.yaml
[ $rc = 0 ] && grep -q "^srun .*--container-image=example.org/fsdp:1 --container-mounts=$PWD:$PWD --container-workdir=$PWD fsdp-launch run.yaml$" log
ok $? "train-container.sbatch starts srun with image and folder"
submit -N1 -n1 slurm/train-container.sbatch run.yaml
[ $rc != 0 ] && grep -q "FSDP_IMAGE: names the image" log
ok $? "and names the variable that is missing"
job=$(WOULD_END=75 FSDP_IMAGE=x sbatch --parsable --output="$PWD/out" -N1 -n1 slurm/train-container.sbatch run.yaml)
for t in $(seq 300); do [[ $(scontrol -o show job "$job") == *Restarts=1* ]] && break || sleep 0.1; done
[ "$t" -lt 300 ]
ok $? "and queues the job again after status 75"
scancel "$job"

if command -v shellcheck >/dev/null; then
    shellcheck -s bash -x -e SC1090 "$TOP"/slurm/*.sbatch "$TOP"/slurm/env.sh >log 2>err
    ok $? "shellcheck has nothing to say"
else
    ok 0 "shellcheck has nothing to say # SKIP no shellcheck here"
fi
echo "1..$n"
exit $bad
