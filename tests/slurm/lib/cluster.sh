# SPDX-License-Identifier: Apache-2.0
# cluster.sh: a Slurm for a test of tests/slurm; `.` it in the scratch folder, with the variables of
# lib/cluster (NODES, MODE, ...) set. The cluster ends with the test.
. "$TOP/tests/lib/tap.sh"
export PATH=$BIN:$PATH:/usr/sbin
export BOOT_KEY_FILE=$PWD/key # not the user's
unset RANK WORLD_SIZE
cluster_folder=$PWD/slurm
cluster() { "$TOP/tests/slurm/lib/cluster" "$1" "$cluster_folder" "${@:2}"; }
for tool in slurmctld slurmd munged srun; do
    if ! command -v $tool >/dev/null; then
        echo "1..0 # SKIP no $tool here (scripts/deps.sh slurm)"
        exit 0
    fi
done
trap 'cluster down' EXIT
up=$(cluster up 2>up.err) || {
    echo "1..1"
    echo "not ok 1 - a Slurm of ${NODES:-4} nodes comes up"
    sed 's/^/# /' up.err
    exit 1
}
eval "$up"

step() { # arguments of srun...: log and err get its output
    timeout -k 5 "${LIMIT:-60}" srun --quiet "$@" >log 2>err
    rc=$?
}
