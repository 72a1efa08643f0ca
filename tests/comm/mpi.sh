#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Backend mpi under mpirun: the conformance suite, training to the last digit of backend host, and what
# is said where there is no MPI.
# run: timeout=1200
. "$TOP/tests/lib/tap.sh"
export PATH=$BIN:$PATH OMPI_MCA_mpi_yield_when_idle=1
if [ -n "${TEST_SANITIZER:-}" ]; then
    echo "1..0 # SKIP not under a sanitizer: it sees what MPI leaves at its end"
    exit 0
fi
if ! command -v mpirun >/dev/null || ! [ -e "$BIN/../lib/libfsdp-mpi.so" ]; then
    echo "1..0 # SKIP this build has no MPI"
    exit 0
fi
run() { # ranks, command...
    timeout -k 5 300 mpirun --oversubscribe -n "$@" >log 2>err
}
for size in 1 3 4; do
    for lanes in plain threaded; do
        FSDP_MPI_LIBRARY=$BIN/../lib/libfsdp-mpi.so run $size "$BIN/tests/comm/test_conformance" board.$size.$lanes $lanes && grep -q '^[1-9][0-9]* checks, 0 bad$' log
        ok $? "conformance, $size ranks, $lanes lanes: $(tail -n 1 log)"
    done
done
cat >run.yaml <<END
model: {path: $TOP/examples/llama-tiny, init: random}
data: {path: $TOP/README.md, seq_len: 64}
train: {steps: 8, global_batch_size: 12}
checkpoint: {path: ck, interval: 4}
END
run 3 fsdp-launch run.yaml fsdp.backend=mpi log.metrics=mpi.jsonl && grep -q "backend mpi" log
ok $? "three ranks train"
sed 's/, "tokens".*//' mpi.jsonl >mpi
fsdp-launch -n 3 run.yaml fsdp.backend=host checkpoint.path=host log.metrics=host.jsonl >log 2>err
cmp <(sed 's/, "tokens".*//' host.jsonl) mpi >>err && [ "$(wc -l <mpi)" = 8 ]
ok $? "as three ranks of backend host, to the last digit"
run 2 fsdp-launch run.yaml fsdp.backend=mpi train.steps=10 log.metrics=mpi.jsonl && grep -q "steps .* 8 to 10" log
ok $? "two ranks resume"
fsdp-launch -n 2 run.yaml fsdp.backend=mpi >log 2>err
[ $? = 2 ] && grep -q "backend 'mpi' cannot serve this group: MPI needs ranks that srun --mpi=pmix or mpirun started" err
ok $? "ranks of fsdp-launch -n are told who must start them"
FSDP_MPI_LIBRARY=$PWD/nothing.so run 2 fsdp-launch run.yaml fsdp.backend=mpi checkpoint.path=other
[ $? != 0 ] && grep -q "backend 'mpi' cannot serve this group: .*nothing.so: cannot open" err
ok $? "a library that is not there is named"
SLURM_PMIX_FENCE=tree run 2 fsdp-launch run.yaml fsdp.backend=mpi checkpoint.path=other
[ $? = 2 ] && [ "$(grep -c "SLURM_PMIX_FENCE=tree: MPI cannot begin reliably .*; unset it or say ring before srun" err)" = 1 ]
ok $? "fences of PMIx that do not wait are refused, with the fix"
SLURM_PMIX_FENCE=ring run 2 fsdp-launch run.yaml fsdp.backend=mpi train.steps=1 checkpoint.path=ring && grep -q "backend mpi" log
ok $? "and others are not"
says="fsdp-launch: rank [01][^:]*: MPI does not begin on [^ ]* (Open MPI v[0-9.]*), for the reason that it gave above"
OMPI_MCA_pml=none run 2 fsdp-launch run.yaml fsdp.backend=mpi checkpoint.path=unbegun
rc=$?
if [[ $(mpirun --version) == *\ 4.* ]]; then
    [ $rc != 0 ] && ! [ -e unbegun ]
    ok $? "an MPI that does not begin ends the run (Open MPI 4 says so itself)"
else
    [ $rc = 76 ] && [ "$(grep -ac "$says" err)" = 1 ]
    ok $? "an MPI that does not begin is an error of ours, said once"
    # Into a file: this mpirun loses the last words of a rank that fails.
    run 2 sh -c '[ $PMIX_RANK = 0 ] || export OMPI_MCA_pml=none; exec "$@" 2>err.$PMIX_RANK' sh fsdp-launch run.yaml \
        fsdp.backend=mpi checkpoint.path=unbegun
    [ $? = 76 ] && grep -q "${says/\[01]/1}" err.1
    ok $? "so it is while the other rank waits for this one inside of MPI"
fi
! ldd "$BIN/fsdp-launch" "$BIN/ckpt-merge" | grep -q libmpi
ok $? "the programs themselves need no MPI"
echo "1..$n"
exit $bad
