#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# How ranks meet under a real srun, with PMIx and without, and what is said when one does not come.
# run: timeout=300
. "$TOP/tests/slurm/lib/cluster.sh"
L=$BIN/tests/launcher/test_launch
echo "fake: {}" >c.yaml
four=(-N4 -n8 --ntasks-per-node=2)

meets() { # method, type of MPI, text
    step --mpi="$2" "${four[@]}" "$L" -v c.yaml
    [ $rc = 0 ] && [ "$(grep -c "of 8, local . of 2, node . of 4, host n., method $1" log)" = 8 ] &&
        grep -q "8 ranks on 4 nodes have met through $1" err
    ok $? "$3"
}
pmix=0
if srun --mpi=list 2>&1 | grep -q pmix && "$L" --help >/dev/null && BOOT_METHODS=pmix "$L" c.yaml 2>&1 | grep -q 'no PMIx server'; then
    pmix=1
    meets pmix pmix "8 ranks on 4 nodes through PMIx"
else
    ok 0 "8 ranks on 4 nodes through PMIx # SKIP this build or this Slurm has no PMIx"
fi
meets slurm none "without PMIx"
meets slurm pmi2 "with PMI 2, which is not used"
[ "$(stat -c %a key)" = 600 ] && [ "$(stat -c %s key)" = 32 ]
ok $? "the user's key was made, for its owner alone"
step --mpi=none -N1 -n3 "$L" -v c.yaml
[ $rc = 0 ] && grep -q "rank 2 of 3, local 2 of 3, node 0 of 1" log
ok $? "3 ranks on one node"
step --mpi=none -N1 -n1 "$L" -v c.yaml
[ $rc = 0 ] && grep -q "rank 0 of 1" log
ok $? "1 rank"
step --mpi=none -N3 -n6 --ntasks-per-node=2 -m cyclic "$L" -v c.yaml
[ $rc = 0 ] && grep -q "rank 3 of 6, local 1 of 2, node 0 of 3" log
ok $? "cyclic distribution: the node map is the real one"
# shellcheck disable=SC2016
step --mpi=none "${four[@]}" "$BIN/fsdp-launch" -- sh -c \
    'echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $NODE_RANK $SLURM_PROCID; echo at $MASTER_ADDR:$MASTER_PORT >&2'
[ $rc = 0 ] && [ "$(sort -n log | paste -sd,)" = "0 0 8 2 0 0,1 1 8 2 0 1,2 0 8 2 1 2,3 1 8 2 1 3,4 0 8 2 2 4,5 1 8 2 2 5,6 0 8 2 3 6,7 1 8 2 3 7" ] &&
    [ "$(sort -u err | wc -l)" = 1 ]
ok $? "a program gets what torchrun gives"

for mpi in none pmix; do
    [ $mpi = none ] || [ $pmix = 1 ] || continue
    step --mpi=$mpi -N2 -n2 "$L" --ranks-per-task 3 -v c.yaml
    [ $rc = 0 ] && [ "$(sed 's/^rank \([0-9]\) of 6, local \(.\) of 3, node \(.\) of 2.*/\1\2\3/' log | sort | xargs)" = \
        "000 110 220 301 411 521" ]
    ok $? "--mpi=$mpi, one task a node: each starts 3 ranks"
done
# shellcheck disable=SC2016
step --mpi=none -N2 -n2 -w n0,n1 "$L" --ranks-per-task 2 -- sh -c 'echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $NODE_RANK $MASTER_ADDR'
[ $rc = 0 ] && [ "$(sort log | paste -sd,)" = "0 0 4 2 0 n0,1 1 4 2 0 n0,2 0 4 2 1 n0,3 1 4 2 1 n0" ]
ok $? "so does a program"
step --mpi=none -N2 -n2 -w n0,n1 "$L" --ranks-per-task 2 c.yaml fake.mode=kill fake.rank=3
[ $rc = 76 ] && grep -q "fsdp-launch: rank 3 on n1 was killed by signal 9" err
ok $? "a killed rank of a task is named with its node"
# shellcheck disable=SC2016
step --mpi=none -N2 -n2 sh -c 'exec "$0" --ranks-per-task $((2 + SLURM_PROCID)) c.yaml' "$L"
[ $rc != 0 ] && grep -q -e "--ranks-per-task 3 here and 2 at task 0" err
ok $? "tasks that would start different numbers are told"
step --mpi=none -N1 -n1 "$L" --ranks-per-task 2 c.yaml
[ $rc = 0 ] && grep -q "rank 1 of 2" log
ok $? "a task alone starts its ranks"

step --mpi=none "${four[@]}" "$L" --timeout 4 c.yaml fake.mode=kill fake.rank=5
[ $rc != 0 ] && grep -q "fsdp-launch: rank 5 on n2 is lost" err
ok $? "a killed rank is named with its node"
# Rank 3 never starts fsdp-launch.
# shellcheck disable=SC2016
step --mpi=none "${four[@]}" sh -c '[ $SLURM_PROCID = 3 ] && sleep 8 || exec "$@"' sh "$L" --timeout 3 c.yaml
[ $rc != 0 ] && grep -q "waited .* s at the rendezvous for rank 3 on n1 (never connected)" err
ok $? "a rank that never starts is named with its node"
# Rank 0 never starts: nobody serves.
# shellcheck disable=SC2016
step --mpi=none "${four[@]}" sh -c '[ $SLURM_PROCID = 0 ] && sleep 8 || exec "$@"' sh "$L" --timeout 3 c.yaml
[ $rc != 0 ] && grep -q "found no rank 0 on n0" err
ok $? "rank 0 that never starts is named with its node"
# shellcheck disable=SC2016
step --mpi=none "${four[@]}" sh -c 'export SLURM_STEP_NODELIST=nowhere.invalid SLURM_LAUNCH_NODE_IPADDR=
    [ $SLURM_PROCID = 0 ] || unset SLURM_LAUNCH_NODE_IPADDR; exec "$@"' sh "$L" --timeout 3 c.yaml
[ $rc != 0 ] && grep -q "nowhere.invalid, does not resolve here" err
ok $? "a name that does not resolve is said"
# shellcheck disable=SC2016
step --mpi=none -N2 -n2 sh -c '[ $SLURM_PROCID = 0 ] || export BOOT_KEY_FILE=$PWD/other; exec "$@"' sh "$L" --timeout 3 c.yaml
[ $rc != 0 ] && grep -q "other the same file on all nodes" err
ok $? "a home folder that is not shared is said"
chmod 644 key
step --mpi=none -N2 -n2 "$L" --timeout 3 c.yaml
[ $rc != 0 ] && grep -q "key, the key that keeps strangers out of the job, can be read by others" err
ok $? "a key that others can read is refused"
chmod 600 key
step --mpi=none -N2 -n4 "$L" c.yaml fake.mode=refuse
[ $rc = 2 ] && [ "$(grep -c 'mode refuse is refused' err)" = 1 ]
ok $? "a bad configuration is refused once"
BOOT_PORT=nonsense step --mpi=none -N1 -n2 "$L" c.yaml
[ $rc = 2 ] && grep -q "BOOT_PORT=nonsense" err
ok $? "a bad BOOT_PORT is refused"
cat >job.sh <<END
#!/bin/bash
#SBATCH -N2 --ntasks-per-node=2 -o batch.out
"$L" -v c.yaml
srun --mpi=none "$L" -v c.yaml
END
timeout 60 sbatch --quiet --wait job.sh
cp batch.out err
grep -q "SLURM_N.*=4 says that there are more ranks; start the ranks with .srun." batch.out &&
    [ "$(grep -c 'of 4, .*method slurm' batch.out)" = 4 ]
ok $? "in a batch script without srun there is a hint, with srun there are ranks"

echo "1..$n"
exit $bad
