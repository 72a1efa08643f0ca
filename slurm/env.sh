# SPDX-License-Identifier: Apache-2.0
# env.sh: the one file that a site edits. The scripts next to it read it; so may yours:
#
#     . slurm/env.sh
#     fsdp_srun fsdp-launch run.yaml
#
# What is set in the environment of sbatch goes before what stands here.

# Where the programs are, if not on PATH; or load a module here.
: "${FSDP_BIN:=}"
[ -z "$FSDP_BIN" ] || PATH=$FSDP_BIN:$PATH
# module load fsdp

# How ranks meet: pmix, none or pmi2 (srun --mpi=list). Empty: pmix if this Slurm has it, else none.
: "${FSDP_MPI:=}"

# More arguments of every srun, such as --cpu-bind=cores. GPUs are asked for with the job: as many a node
# as tasks (sbatch --ntasks-per-node=8 --gpus-per-node=8), so that each task sees all of its node; of
# --gpus-per-task=1 NCCL may see too little to use NVLink.
: "${FSDP_SRUN_ARGS:=}"

# A prefix of every program, such as "apptainer exec --nv fsdp.sif"; enroot and pyxis go into
# FSDP_SRUN_ARGS (--container-image=...).
: "${FSDP_RUN:=}"

# Between few nodes the fences of Slurm's PMIx do not wait for everybody unless they are told to. The
# toolkit does without; MPI's own beginning (fsdp.backend=mpi) does not.
export SLURM_PMIX_FENCE=${SLURM_PMIX_FENCE:-ring}

# The key that keeps strangers out of jobs that meet without PMIx; a folder that all nodes see.
# export BOOT_KEY_FILE=$HOME/.config/fsdp/key

# Which network the ranks use among each other, by the beginning of its name.
# export BOOT_INTERFACE=ib

if [ -z "$FSDP_MPI" ]; then
    if srun --mpi=list 2>&1 | grep -q pmix; then FSDP_MPI=pmix; else FSDP_MPI=none; fi
fi

# Ranks end each other over their own control channel. --kill-on-bad-exit=1 would take the first rank
# that leaves with 75 for a failure and kill others while they save. --wait: a rank that does not end
# with the others, because it was stopped, is killed.
# shellcheck disable=SC2206
FSDP_SRUN=(srun --mpi="$FSDP_MPI" --kill-on-bad-exit=0 --wait=60 $FSDP_SRUN_ARGS)
# shellcheck disable=SC2086
fsdp_srun() { "${FSDP_SRUN[@]}" $FSDP_RUN "$@"; }
