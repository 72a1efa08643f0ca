# SPDX-License-Identifier: Apache-2.0
# env.sh: the one file that a site edits. The scripts next to it read it; so may yours:
#
#     . slurm/env.sh
#     fsdp_srun fsdp-launch run.yaml
#
# What is set in the environment of sbatch goes before what stands here.

# ---- the programs ----------------------------------------------------------------------------------

# `make install` writes its PREFIX here. In the source tree the programs of `make` are taken.
fsdp_prefix='@PREFIX@'
fsdp_here=${BASH_SOURCE[0]%/*}
case $fsdp_prefix in
/*) fsdp_prefix=$fsdp_prefix/bin ;;
*) fsdp_prefix=$fsdp_here/../build/bin ;;
esac

# Where the programs are; or load a module here. Programs on PATH go before the folder above.
: "${FSDP_BIN:=}"
# module load fsdp
if [ -n "$FSDP_BIN" ]; then
    PATH=$FSDP_BIN:$PATH
elif ! command -v fsdp-launch >/dev/null && [ -x "$fsdp_prefix/fsdp-launch" ]; then
    PATH=$(cd "$fsdp_prefix" && pwd):$PATH
fi

# A prefix of every program, such as "apptainer exec --nv fsdp.sif" (train-apptainer.sbatch sets it);
# enroot and pyxis go into FSDP_SRUN_ARGS (train-container.sbatch).
: "${FSDP_RUN:=}"

# ---- srun ------------------------------------------------------------------------------------------

# How ranks meet: pmix, none or pmi2 (srun --mpi=list). Empty: pmix if this Slurm has it, else none.
: "${FSDP_MPI:=}"

# More arguments of every srun, such as --cpu-bind=cores. GPUs are asked for with the job: as many a node
# as tasks (sbatch --ntasks-per-node=8 --gpus-per-node=8), so that each task sees all of its node; of
# --gpus-per-task=1 NCCL may see too little to use NVLink.
: "${FSDP_SRUN_ARGS:=}"

# ---- the log ---------------------------------------------------------------------------------------

# A folder for the output of jobs, such as logs: it is made when the job starts, and the file of
# sbatch's --output only says where the rest is. (Slurm makes no folder for --output. A job whose folder
# is not there ends at once and leaves no word.) Empty: all output is in the file of --output.
: "${FSDP_LOGS:=}"

# ---- how ranks meet --------------------------------------------------------------------------------

# Between few nodes the fences of Slurm's PMIx do not wait for everybody unless they are told to. The
# toolkit does without; MPI's own beginning (fsdp.backend=mpi) does not.
export SLURM_PMIX_FENCE=${SLURM_PMIX_FENCE:-ring}

# The key that keeps strangers out of jobs that meet without PMIx; a folder that all nodes see.
# export BOOT_KEY_FILE=$HOME/.config/fsdp/key

# Which network the ranks use among each other, by the beginning of its name.
# export BOOT_INTERFACE=ib

# ---- the fabric, for GPUs --------------------------------------------------------------------------
# NCCL finds cards and networks by itself. Set a line below only where the test of gpu-smoke.sbatch is
# slow or fails; NCCL_DEBUG=INFO in sbatch's environment then prints what NCCL has chosen ("NET/IB",
# "NET/OFI", or "NET/Socket", which is TCP).

# The network over which NCCL's ranks find each other, and send where there is no other. Needed where a
# node has interfaces that lead nowhere (docker0, virbr0) or several networks. The beginning of a name;
# "=" before it: the whole name; "^": all but these.
# export NCCL_SOCKET_IFNAME=ib

# InfiniBand and RoCE: the cards that NCCL uses (ibv_devices lists them). Needed where some are of the
# storage or of the management. Set it alike for all ranks, not to one card a rank.
# export NCCL_IB_HCA==mlx5_0,mlx5_1,mlx5_2,mlx5_3

# InfiniBand: the partition (an index of the card's table) and the service level, where the subnet's
# manager gives jobs others than 0.
# export NCCL_IB_PKEY=1
# export NCCL_IB_SL=1

# RoCE: the index of the card's RoCE v2 address (show_gids). NCCL from 2.21 finds it. The traffic class is
# the one that the switches carry without loss; ask who runs them.
# export NCCL_IB_GID_INDEX=3
# export NCCL_IB_TC=106

# EFA (AWS): NCCL reaches it through the plugin aws-ofi-nccl and libfabric, whose folders must be on
# LD_LIBRARY_PATH. FI_PROVIDER: no other network of libfabric. The second line is for p4d with libfabric
# before 1.18, which else copies through the host.
# export FI_PROVIDER=efa
# export FI_EFA_USE_DEVICE_RDMA=1
# export LD_LIBRARY_PATH=/opt/amazon/ofi-nccl/lib:/opt/amazon/efa/lib:${LD_LIBRARY_PATH:-}

# ---- what follows needs no change ------------------------------------------------------------------

if [ -n "$FSDP_LOGS" ] && [ "${ENVIRONMENT:-}" = BATCH ]; then # not in a shell of salloc
    fsdp_log=${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}
    fsdp_log=$FSDP_LOGS/${SLURM_JOB_NAME:-job}-$fsdp_log.out
    if mkdir -p "$FSDP_LOGS" && : >>"$fsdp_log"; then
        echo "the output is in $(realpath "$fsdp_log")"
        exec >>"$fsdp_log" 2>&1
    fi
fi

if [ -z "$FSDP_MPI" ]; then
    if srun --mpi=list 2>&1 | grep -q pmix; then FSDP_MPI=pmix; else FSDP_MPI=none; fi
fi

# From Slurm 22.05 on srun no longer takes --cpus-per-task from the job.
[ -z "${SLURM_CPUS_PER_TASK:-}" ] || export SRUN_CPUS_PER_TASK=${SRUN_CPUS_PER_TASK:-$SLURM_CPUS_PER_TASK}

# Ranks end each other over their own control channel. --kill-on-bad-exit=1 would take the first rank
# that leaves with 75 for a failure and kill others while they save. --wait: a rank that does not end
# with the others, because it was stopped, is killed.
# shellcheck disable=SC2206
FSDP_SRUN=(srun --mpi="$FSDP_MPI" --kill-on-bad-exit=0 --wait=60 $FSDP_SRUN_ARGS)
# shellcheck disable=SC2086
fsdp_srun() { "${FSDP_SRUN[@]}" $FSDP_RUN "$@"; }
