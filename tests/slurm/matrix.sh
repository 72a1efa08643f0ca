#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Nodes times ranks a node times ways to start them: HYBRID_SHARD trains to the losses of one process,
# with the fence that Slurm comes with. MATRIX=all: every cell (make check-long); else some that have
# each value of each at least once. MATRIX_TABLE=FILE gets the table of docs/results/cycles.md.
# run: timeout=1800
export MPI_CONF=''
. "$TOP/tests/slurm/lib/cluster.sh"
export OMPI_MCA_mpi_yield_when_idle=1
cat >run.yaml <<END
model: {path: $TOP/examples/llama-tiny, init: random}
data: {path: $TOP/README.md, seq_len: 64}
train: {steps: 6, global_batch_size: 16}
fsdp: {sharding_strategy: HYBRID_SHARD}
checkpoint: {path: ''}
log: {metrics: metrics.jsonl, interval: 6}
END
losses() { sed 's/.*"step": \([0-9]*\), "loss": \([^,]*\),.*/\1 \2/' "$1"; }
near() { # two files of losses: equal but for the order of sums
    paste -d' ' "$1" "$2" | awk '{ d = $2 - $4; if (d < 0) d = -d } $1 != $3 || d > 2e-5 * $2 { bad = 1 }
        END { exit bad || NR != 6 }'
}
"$BIN/fsdp-launch" -n 1 run.yaml log.metrics=one.jsonl >log 2>err
losses one.jsonl >one
[ "$(wc -l <one)" = 6 ]
ok $? "one process"

pmix=1
srun --mpi=list 2>&1 | grep -q pmix && BOOT_METHODS=pmix fsdp-launch -n 1 run.yaml 2>&1 | grep -q "no PMIx server" || pmix=0
cell() { # nodes, ranks a node, how
    [[ $3 != *pmix* && $3 != mpi ]] || [ $pmix = 1 ] || {
        ok 0 "$1 nodes x $2 ranks, $3 # SKIP this build or this Slurm has no PMIx"
        return
    }
    [ "$3" != mpi ] || [ -e "$BIN/../lib/libfsdp-mpi.so" ] || {
        ok 0 "$1 nodes x $2 ranks, $3 # SKIP this build has no MPI"
        return
    }
    local ntasks=$2 args=(--mpi="$3") launch=(fsdp-launch -v) more=()
    case $3 in
    pmix-ring) args=(--mpi=pmix) ;;
    mpi) args=(--mpi=pmix) more=(fsdp.backend=mpi) ;;
    task | task-pmix) ntasks=1 args=(--mpi=none) launch+=(--ranks-per-task "$2") ;;
    esac
    [ "$3" != task-pmix ] || args=(--mpi=pmix)
    rm -f metrics.jsonl
    local begin=${EPOCHREALTIME/[.,]/}
    SLURM_PMIX_FENCE=$([[ $3 == pmix-ring || $3 == mpi ]] && echo ring || echo tree) LIMIT=240 step "${args[@]}" -N "$1" \
        -n $(($1 * ntasks)) --ntasks-per-node="$ntasks" "${launch[@]}" run.yaml "${more[@]}" </dev/null
    losses metrics.jsonl >here 2>>err
    [ $rc = 0 ] && near one here && { [ $(($1 * $2)) = 1 ] || grep -q "HYBRID_SHARD, $1 x $2 (replicate x shard)" log; }
    local equal=$?
    ok $equal "$1 nodes x $2 ranks, $3"
    [ $equal = 0 ] && took[$1 $2 $3]=$(awk -v us=$((${EPOCHREALTIME/[.,]/} - begin)) 'BEGIN { printf "%.1f", us / 1e6 }') ||
        took[$1 $2 $3]=fails
}
ways=(pmix pmix-ring mpi pmi2 none task task-pmix)
declare -A took
if [ "${MATRIX:-}" = all ]; then
    for nodes in 1 2 4; do
        for ranks in 1 2 4; do
            for way in "${ways[@]}"; do cell $nodes $ranks "$way"; done
        done
    done
else
    while read -r nodes ranks way; do cell "$nodes" "$ranks" "$way"; done <<'END'
4 2 pmix
2 4 pmix-ring
4 1 none
1 4 pmi2
2 2 task
1 2 task-pmix
2 2 mpi
END
fi
[ -z "${MATRIX_TABLE:-}" ] || {
    echo "| nodes x ranks on each |$(printf ' %s |' "${ways[@]}")"
    echo "| --- |$(printf ' --- |%.0s' "${ways[@]}")"
    for nodes in 1 2 4; do
        for ranks in 1 2 4; do
            printf '| %s x %s |' $nodes $ranks
            for way in "${ways[@]}"; do printf ' %s |' "${took[$nodes $ranks $way]:-}"; done
            echo
        done
    done
} >"$MATRIX_TABLE"
echo "1..$n"
exit $bad
