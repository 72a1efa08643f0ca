#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Submits a training job, and a merge of its newest checkpoint that runs after it, and only if it has done
# all its steps. A training job that is queued again keeps its number, so that the merge waits for the end of it all.
#
#   slurm/train-then-merge.sh CONFIG.yaml CHECKPOINTS OUT [options of sbatch for the training ...] \
#       [-- section.key=value ...]
#   slurm/train-then-merge.sh run.yaml checkpoints weights --nodes=2 --ntasks-per-node=4 -- train.steps=1000
#
# CHECKPOINTS is checkpoint.path of the run, which this passes on; OUT becomes a Hugging Face model. Options of
# the merge alone, such as another partition: MERGE_ARGS='--partition=cpu'.
set -u
usage="usage: train-then-merge.sh CONFIG.yaml CHECKPOINTS OUT [options of sbatch ...] [-- section.key=value ...]"
[ $# -ge 3 ] || { echo "$usage" >&2; exit 2; }
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd) config=$1 checkpoints=$2 out=$3
shift 3
[ -r "$config" ] || { echo "train-then-merge.sh: cannot read $config. $usage" >&2; exit 2; }
options=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do options+=("$1") && shift; done
[ $# = 0 ] || shift

train=$(sbatch --parsable "${options[@]}" "$here/train.sbatch" "$config" "$@" checkpoint.path="$checkpoints") || exit 1
train=${train%%;*} # with a cluster's name after it
# shellcheck disable=SC2086
merge=$(sbatch --parsable --dependency="afterok:$train" --kill-on-invalid-dep=yes ${MERGE_ARGS:-} \
    "$here/merge.sbatch" "$checkpoints" "$out") || {
    echo "train-then-merge.sh: training is job $train, but the merge was not accepted; submit it yourself:" >&2
    echo "    sbatch --dependency=afterok:$train $here/merge.sbatch $checkpoints $out" >&2
    exit 1
}
merge=${merge%%;*}
echo "training is job $train; job $merge merges $checkpoints to $out after it"
echo "watch: squeue --jobs=$train,$merge    end: scancel $train $merge"
