#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The scripts of slurm/ as a site has them: a copy in which env.sh alone was edited, submitted from the
# folder above.
# run: long
# run: timeout=600
. "$TOP/tests/slurm/lib/cluster.sh"
. "$TOP/tests/slurm/lib/jobs.sh"
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
for script in "$TOP"/slurm/*.sbatch "$TOP"/slurm/*.sh; do
    name=$(basename "$script")
    [ "$name" != env.sh ] || continue
    env -u SLURM_JOB_ID bash "$script" >log 2>err
    [ $? = 2 ] && grep -q "^usage: .*$name" err && [ "$(grep -c . err)" -le 2 ]
    ok $? "$name says how it is called"
done
submit -N1 -n1 slurm/train.sbatch
[ $rc = 2 ] && grep -q "usage: sbatch .* train.sbatch" log
ok $? "so does train.sbatch in a job without a configuration"

# ---- from any folder ---------------------------------------------------------------------------

site=$PWD
mkdir -p "$site/else where" && cd "$site/else where" || exit 1
mkdir scratch
submit -N2 --ntasks-per-node=2 "$site/slurm/train.sbatch" "$site/run.yaml" checkpoint.path=by-path log.metrics=
[ $rc = 0 ] && [ -e by-path/step-00000020 ]
ok $? "a script is submitted from any folder by its path"
submit -N1 -n2 --chdir="$PWD/scratch" ../slurm/train.sbatch "$site/run.yaml" checkpoint.path=relative
[ $rc = 0 ] && [ -e scratch/relative/step-00000020 ]
ok $? "by a relative path, and runs in the folder of --chdir"
submit --job-name=counted -N1 -n2 --cpus-per-task=3 --export="ALL,FSDP_LOGS=logs/of jobs" "$site/slurm/smoke-2node.sbatch"
name=$(echo "logs/of jobs"/counted-*.out)
[ -s "$name" ] && grep -q "the output is in $PWD/$name" log && ! grep -q smoke: log && grep -q "smoke:" "$name"
ok $? "FSDP_LOGS: a folder that the job makes has its output, and the other file says where"
cat >tasks.sbatch <<END
#!/bin/bash
. "$site/slurm/env.sh"
fsdp_srun bash -c 'echo \$SLURM_CPUS_PER_TASK of task \$SLURM_PROCID'
END
submit -N1 -n2 --cpus-per-task=3 tasks.sbatch
[ $rc = 0 ] && grep -q "^3 of task 1$" log
ok $? "srun takes --cpus-per-task of the job"

# As make install does it.
mkdir -p prefix/bin prefix/share/fsdp && cp -r "$TOP/slurm" prefix/share/fsdp/slurm && ln -s "$BIN"/* prefix/bin/
sed -i "s|@PREFIX@|$PWD/prefix|" prefix/share/fsdp/slurm/env.sh
submit -N1 -n2 "prefix/share/fsdp/slurm/train.sbatch" "$site/run.yaml" checkpoint.path=installed
[ $rc = 0 ] && [ -e installed/step-00000020 ]
ok $? "installed scripts find their programs"
cp prefix/share/fsdp/slurm/train.sbatch mine.sbatch
PATH=$PWD/prefix/bin:$PATH submit -N1 -n2 mine.sbatch "$site/run.yaml" checkpoint.path=copied
[ $rc = 0 ] && [ -e copied/step-00000020 ]
ok $? "a copy finds the installed env.sh by fsdp-launch on PATH"
submit -N1 -n2 mine.sbatch "$site/run.yaml"
[ $rc = 2 ] && grep -q "train.sbatch: cannot read .*env.sh; name the site's env.sh in FSDP_ENV" log
ok $? "and says what to set where there is none"
FSDP_ENV=/nowhere/env.sh submit -N1 -n2 "$site/slurm/train.sbatch" "$site/run.yaml"
[ $rc = 2 ] && grep -q "train.sbatch: cannot read /nowhere/env.sh" log
ok $? "FSDP_ENV goes before all"
cd "$site" || exit 1
found=$(for script in slurm/*.sbatch; do sed -n '/^# env.sh: what/,/^fi$/p' "$script" | md5sum; done | sort -u | wc -l)
[ "$found" = 1 ]
ok $? "all scripts look for it in the same way"

# ---- a sweep -----------------------------------------------------------------------------------

cat >rates.txt <<'END'
# the rates
optim.lr=1e-4

optim.lr=3e-4 optim.warmup_steps=2
optim.lr=1e-3 train.steps=400
END
sweep=$(sbatch --parsable --output="$PWD/sweep-%a" -N1 -n2 --array=1-3 slurm/sweep.sbatch run.yaml rates.txt checkpoint.interval=5)
at_step rates/3 20
job=$(scontrol -o show job "${sweep}_3" | sed -n 's/^JobId=\([0-9]*\) .*/\1/p')
kill -KILL "$(rank_pid 1)"
ok $? "a rank of the sweep's element 3 is killed"
for t in $(seq 600); do [ -n "$(squeue -h --jobs="$sweep" 2>/dev/null)" ] || break; sleep 0.2; done
[ -e rates/1/checkpoints/step-00000020 ] && [ -e rates/2/checkpoints/step-00000020 ] && [ "$(steps rates/1)" = 20 ] &&
    [ "$(cat rates/2/overrides)" = "optim.lr=3e-4 optim.warmup_steps=2" ] && ! cmp -s <(losses rates/1) <(losses rates/2)
ok $? "each element has its line, its checkpoints and its metrics"
cp sweep-3 log && [ -e rates/3/checkpoints/step-00000400 ] && [ "$(steps rates/3)" = 400 ] && grep -q "queueing job $job again" log
ok $? "the killed one was queued again and did all its steps"
submit -N1 -n2 --array=1-1 slurm/sweep.sbatch run.yaml rates.txt checkpoint.interval=5
[ $rc = 0 ] && [ "$(steps rates/1)" = 20 ]
ok $? "submitted again, an element that is done has nothing to do"
sed -i 's/1e-4/2e-4/' rates.txt
submit -N1 -n2 --array=1-1 slurm/sweep.sbatch run.yaml rates.txt
[ $rc = 2 ] && grep -q "rates/1 was begun with 'optim.lr=1e-4', and line 1 is 'optim.lr=2e-4'; set SWEEP_DIR to another folder" log
ok $? "a folder does not mix two lines"
submit -N1 -n2 --array=4-4 slurm/sweep.sbatch run.yaml rates.txt
[ $rc = 2 ] && grep -q "rates.txt has no line 4 but 3; submit it with --array=1-3" log
ok $? "an element without a line is told how many there are"
submit -N1 -n2 slurm/sweep.sbatch run.yaml rates.txt
[ $rc = 2 ] && grep -q "this is no array; submit it with --array=1-3" log
ok $? "and so is a job that is no array"

# ---- merge after train -------------------------------------------------------------------------

slurm/train-then-merge.sh run.yaml chain weights-after -N2 --ntasks-per-node=2 --output="$PWD/chain-out" >log 2>err
rc=$?
train=$(sed -n 's/^training is job \([0-9]*\); job \([0-9]*\) merges chain to weights-after after it$/\1/p' log)
merge=$(sed -n 's/^training is job \([0-9]*\); job \([0-9]*\) .*/\2/p' log)
[ $rc = 0 ] && [ -n "$train" ] && [[ $(scontrol -o show job "$merge") == *Dependency=afterok:$train* ]]
ok $? "train-then-merge.sh submits both"
job=$merge
touch out && ends .
[ "$(state)" = COMPLETED ] && [ -s weights-after/model.safetensors ] && grep -q "done: 20 steps" chain-out
ok $? "the merge ran after it"
slurm/train-then-merge.sh run.yaml chain-bad weights-bad -N1 -n2 --output="$PWD/bad-out" -- train.steps=-1 >log 2>err
job=$(sed -n 's/^training is job \([0-9]*\); job \([0-9]*\) .*/\2/p' log)
ends .
[ "$(state)" = CANCELLED ] && [ ! -e weights-bad ] && grep -q "train.steps" bad-out
ok $? "and does not run where training failed"
slurm/train-then-merge.sh absent.yaml a b >log 2>err
[ $? = 2 ] && grep -q "cannot read absent.yaml" err && [ -z "$(squeue -h)" ]
ok $? "a configuration that is not there is refused before anything is submitted"

# ---- GPUs --------------------------------------------------------------------------------------

submit -N2 --ntasks-per-node=2 slurm/gpu-smoke.sbatch
[ $rc = 1 ] && [[ $(tail -n 1 log) == "gpu-smoke: FAILED: n"[0-3]": nvidia-smi is not there"*"Give --partition"* ]]
ok $? "gpu-smoke.sbatch without GPUs: the reason, and what to do"
mkdir gpus && cat >gpus/nvidia-smi <<'END'
#!/bin/sh
[ -z "$SMI_FAILS" ] || { echo "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."; exit 9; }
for gpu in 0 1; do echo "Stand-in, 550.54, 81559 MiB"; done
END
chmod +x gpus/nvidia-smi
SMI_FAILS=1 PATH=$PWD/gpus:$PATH submit -N1 -n2 slurm/gpu-smoke.sbatch
[ $rc = 1 ] && [[ $(tail -n 1 log) == "gpu-smoke: FAILED: n"[0-3]": nvidia-smi: NVIDIA-SMI has failed"* ]]
ok $? "a driver that does not answer is quoted"
PATH=$PWD/gpus:$PATH submit -N2 --ntasks-per-node=1 slurm/gpu-smoke.sbatch
[ $rc = 1 ] && [[ $(tail -n 1 log) == "gpu-smoke: FAILED: 2 tasks for 4 GPUs; submit it again with --ntasks-per-node=2" ]]
ok $? "tasks and GPUs must be as many"
PATH=$PWD/gpus:$PATH FSDP_CUDA_LIBRARY=$BIN/tests/libfsdp-opaque.so submit -N2 --ntasks-per-node=2 slurm/gpu-smoke.sbatch
[ $rc = 0 ] && [[ $(tail -n 1 log) == "gpu-smoke: PASSED: 4 GPUs on 2 nodes met, "* ]] && grep -q "done: 20 steps" log &&
    grep -q "n[0-3] gpu Stand-in, 550.54, 81559 MiB" log
ok $? "with a stand-in for the GPUs it passes"
PATH=$PWD/gpus:$PATH submit -N2 --ntasks-per-node=2 slurm/gpu-smoke.sbatch
[ $rc = 1 ] && [[ $(tail -n 1 log) == "gpu-smoke: FAILED: "* ]]
ok $? "and fails where the programs cannot use them"

# No container runs here (pyxis is a plugin of srun): what the script would start, and what it does after.
cat >>slurm/env.sh <<'END'
fsdp_srun() { echo "${FSDP_SRUN[@]}" "$@"; return "${WOULD_END:-0}"; }
END
FSDP_IMAGE=example.org#fsdp:1 FSDP_MOUNTS=/data:/data submit -N2 --ntasks-per-node=2 slurm/train-container.sbatch run.yaml
[ $rc = 0 ] &&
    grep -q "^srun .*--container-image=example.org#fsdp:1 --container-mounts=$PWD:$PWD,/data:/data --container-workdir=$PWD fsdp-launch run.yaml$" log
ok $? "train-container.sbatch starts srun with image and folders"
submit -N1 -n1 slurm/train-container.sbatch run.yaml
[ $rc = 2 ] && grep -q "FSDP_IMAGE is not set: name the image" log
ok $? "and names the variable that is missing"
job=$(WOULD_END=75 FSDP_IMAGE=x sbatch --parsable --output="$PWD/out" -N1 -n1 slurm/train-container.sbatch run.yaml)
for t in $(seq 300); do [[ $(scontrol -o show job "$job") == *Restarts=1* ]] && break || sleep 0.1; done
[ "$t" -lt 300 ]
ok $? "and queues the job again after status 75"
scancel "$job"

FSDP_IMAGE=absent.sif submit -N1 -n1 slurm/train-apptainer.sbatch run.yaml
[ $rc = 2 ] && grep -q "absent.sif is not there" log
ok $? "train-apptainer.sbatch looks for the image"
touch fsdp.sif
if ! command -v apptainer singularity >/dev/null; then
    FSDP_IMAGE=fsdp.sif submit -N1 -n1 slurm/train-apptainer.sbatch run.yaml
    [ $rc = 2 ] && grep -q "neither apptainer nor singularity is on PATH of n*" log
    ok $? "and for Apptainer"
fi
cat >gpus/apptainer <<'END'
#!/bin/bash
echo "apptainer $*" >>tried
while [ "$1" != fsdp.sif ]; do shift; done # what stands before the image is Apptainer's
shift && exec "$@"
END
chmod +x gpus/apptainer
sed -i '/^fsdp_srun() { echo/d' slurm/env.sh
PATH=$PWD/gpus:$PATH FSDP_IMAGE=fsdp.sif FSDP_MOUNTS=/data submit -N2 --ntasks-per-node=2 slurm/train-apptainer.sbatch run.yaml checkpoint.path=in-apptainer
[ $rc = 0 ] && [ -e in-apptainer/step-00000020 ] && [ "$(sort -u tried)" = "apptainer exec --bind $PWD,/data --pwd $PWD fsdp.sif fsdp-launch run.yaml checkpoint.path=in-apptainer" ]
ok $? "each rank starts as the command of an Apptainer (a stand-in)"

if command -v shellcheck >/dev/null; then
    shellcheck -s bash -x -e SC1090 "$TOP"/slurm/*.sbatch "$TOP"/slurm/*.sh >log 2>err
    ok $? "shellcheck has nothing to say"
else
    ok 0 "shellcheck has nothing to say # SKIP no shellcheck here"
fi
echo "1..$n"
exit $bad
