#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# From srun to the first step on a Slurm of four emulated nodes on this machine, seconds: an srun of
# `true`; until all ranks have met, as they say; the rest of a run of one step, by difference. Next to it `mpirun` of a program that says hello. Called by scripts/bench.sh slurm [RANKS...].
set -u
TOP=$(cd "$(dirname "$0")/.." && pwd)
BIN=${BIN:-$TOP/build/bin}
ROUNDS=${ROUNDS:-3}
work=$(mktemp -d "${TMPDIR:-/tmp}/fsdp-bench.XXXXXX") && cd "$work" || exit 1
trap '"$TOP/tests/slurm/lib/cluster" down "$work/slurm"; rm -rf "$work"' EXIT
up=$(NODES=4 "$TOP/tests/slurm/lib/cluster" up "$work/slurm") || exit 1
eval "$up"
export PATH=$BIN:$PATH BOOT_KEY_FILE=$work/key OPENBLAS_NUM_THREADS=1
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1
cat >run.yaml <<END
model: {path: $TOP/examples/llama-tiny, init: random}
data: {path: $TOP/README.md, seq_len: 64}
train: {steps: 1, global_batch_size: 64}
checkpoint: {path: ''}
log: {metrics: ''}
END
cat >hello.c <<'END'
#include <mpi.h>
#include <stdio.h>
int main(int argc, char **argv)
{
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        puts("hello");
    return MPI_Finalize();
}
END
hello=
type mpicc >log 2>&1 && mpicc -O2 hello.c -o hello 2>err && hello=1
seconds() { # command...: the median
    local i begin
    for ((i = 0; i < ROUNDS; i++)); do
        begin=$(date +%s.%N)
        "$@" >log 2>err </dev/null || { tail -n 3 err >&2; echo nan; continue; }
        awk -v a="$begin" -v b="$(date +%s.%N)" 'BEGIN { print b - a }'
    done | sort -n | sed -n "$(((ROUNDS + 1) / 2))p"
}
# What the ranks say of their meeting: seconds, messages of rank 0, of another rank, calls of the method.
meeting() {
    sed -n 's/.*boot: in \([0-9.]*\) s; messages of rank 0: \([0-9]*\), of another at most \([0-9]*\); calls of [a-z]* by each: \([0-9]*\)/\1 \2 \3 \4/p' err
}
# shellcheck disable=SC2016
printf '| ranks | | tasks start | ranks meet | set-up, first step, end | in all | messages of rank 0, of another; calls of each | `mpirun` hello |\n'
printf '| --- | --- | --- | --- | --- | --- | --- | --- |\n'
for ranks in "${@:-2 4 8 16 32 64}"; do for n in $ranks; do
    nodes=$((n < 4 ? n : 4))
    for mpi in pmix none; do
        step=(srun --quiet "--mpi=$mpi" -N "$nodes" -n "$n" --ntasks-per-node=$((n / nodes)))
        starts=$(seconds "${step[@]}" true)
        for ((i = 0; i < ROUNDS; i++)); do # the median meeting
            "${step[@]}" fsdp-launch -v -- true >log 2>err </dev/null || { tail -n 3 err >&2; continue; }
            meeting
        done | sort -n | sed -n "$(((ROUNDS + 1) / 2))p" >met
        read -r meets root other calls <met || meets=nan root=- other=- calls=-
        trains=$(seconds "${step[@]}" fsdp-launch run.yaml)
        mpirun=-
        [ -z "$hello" ] || [ $mpi != pmix ] || mpirun=$(seconds mpirun --oversubscribe -n "$n" ./hello)
        awk -v n="$n" -v m=$mpi -v a="$starts" -v b="$meets" -v c="$trains" -v d="$mpirun" -v r="$root" -v o="$other" -v k="$calls" 'BEGIN {
            printf "| %d | `--mpi=%s` | %.2f | %.2f | %.2f | %.2f | %s, %s; %s | %s |\n", n, m, a, b, c - a - b, c, r, o, k,
                d == "-" ? "" : sprintf("%.2f", d) }'
    done
done; done
