#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Programs of others on fsdp/launch.h: the examples, built against the shared library, as one process
# and under fsdp-launch -n and mpirun: one text of losses, and an end as a run's where a rank dies.
# run: timeout=600
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
export PATH=$BIN:$PATH OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
unset RANK WORLD_SIZE
LIB=$BIN/../lib
if [ -n "${TEST_SANITIZER:-}" ]; then
    echo "1..0 # SKIP a sanitizer's library needs a program of the same kind"
    exit 0
fi
build() { # out, source, arguments of cc...
    cc -O2 -Wall -Wextra -Werror -o "$1" "$2" "${@:3}" -I"$TOP/libfsdp/include" -I"$TOP/launcher/include" \
        -L"$LIB" -lfsdp-launch -lfsdp -lm -Wl,-rpath,"$LIB" 2>err
}
run() { # command...
    timeout -k 5 100 "$@" >log 2>err
    rc=$?
}

build mlp "$TOP/examples/mlp/mlp.c" && build blocks "$TOP/examples/blocks/blocks.c"
ok $? "the examples build"
{ nm -D --defined-only "$LIB/libfsdp-launch.so"; nm -g --defined-only "$LIB/libfsdp-launch.a"; } |
    awk 'NF == 3 && $3 !~ /^fsdp_launch_/ { print; bad = 1 } END { exit bad }' >log
ok $? "the libraries show fsdp_launch_* alone"
! readelf -d "$LIB/libfsdp-launch.so" | grep -q -i 'NEEDED.*\(pmix\|mpi\|hwloc\)'
ok $? "and need no PMIx to link or start"

run ./mlp && mv log alone && grep -q '^step 299  loss 0.00' alone
ok $? "a process that nobody started as one of several is a job of one rank"
for ranks in 1 2 3; do
    run fsdp-launch -n $ranks -- ./mlp
    [ $rc = 0 ] && cmp -s <(sed 's/ gradient.*//' alone) <(sed 's/ gradient.*//' log)
    ok $? "fsdp-launch -n $ranks: its losses"
done
pmix=0
if command -v mpirun >/dev/null; then
    run mpirun --oversubscribe -n 1 "$BIN/tests/launcher/test_launch" -v <(echo "fake: {}")
    ! grep -q 'pmix: PMIX_RANK' err || pmix=1
fi
for ranks in 1 2 3; do
    if [ $pmix = 0 ]; then
        ok 0 "mpirun -n $ranks # SKIP no mpirun here, or a build without PMIx"
        continue
    fi
    run mpirun --oversubscribe -n $ranks ./mlp
    [ $rc = 0 ] && cmp -s <(sed 's/ gradient.*//' alone) <(sed 's/ gradient.*//' log)
    ok $? "mpirun -n $ranks: its losses"
done

./blocks -w 32 -s 21 | grep step >alone
for ranks in 2 5; do
    run fsdp-launch -n $ranks -- ./blocks -w 32 -s 21
    [ $rc = 0 ] && cmp -s alone <(grep step log) && [ "$(wc -l <alone)" = 3 ]
    ok $? "8 blocks on $ranks ranks: the losses of one"
done
run fsdp-launch -n 7 -- ./blocks -w 16 -n 3 -s 2
ok $rc "fewer rows than ranks"
run ./blocks -w none
[ $rc = 2 ] && grep -q usage err
ok $? "a bad option"

# ---- an end ----------------------------------------------------------------------------------------

sed 's/STEPS = 300/STEPS = 300000000/; s/step % 50 == 0/step % 1000 == 0/; s/    struct job job = {0};/&\n    setvbuf(stdout, NULL, _IOLBF, 0);/' "$TOP/examples/mlp/mlp.c" >long.c
sed 's|fsdp_micro_begin(f, FSDP_TRAIN, 0, err)|(step == 3 \&\& m->rows == 22 ? fsdp_err_set(err, FSDP_EIO, "the disk is on fire") : &)|' \
    "$TOP/examples/mlp/mlp.c" >failing.c
build long long.c -Wno-format && build failing failing.c
ok $? "one that trains for long, and one of whose three ranks one fails"
dies() { # which rank by its place, command of three ranks...
    local which=$1 i pids
    shift
    timeout -k 5 250 "$@" >log 2>err &
    for i in $(seq 1800); do # a slow machine takes its time to start three
        [ -s log ] && break
        sleep 0.1
    done
    pids=($(for p in /proc/[0-9]*; do
        [ "$(readlink "$p/exe")" = "$PWD/long" ] && echo "${p#/proc/}"
    done 2>/dev/null | sort -n))
    kill -KILL "${pids[$which]}"
    wait $!
    rc=$?
}
left() { # programs that still run
    for p in /proc/[0-9]*; do readlink "$p/exe"; done 2>/dev/null | grep -c "^$PWD/long\$"
}
dies 1 fsdp-launch -n 3 -- ./long
[ $rc = 76 ] && grep -q '^fsdp-launch: rank [0-2] on .* was killed by signal 9' err && [ "$(left)" = 0 ]
ok $? "a rank that is killed ends the others, is named, and the code says that a requeue may help"
run fsdp-launch -n 3 -- ./failing
[ $rc = 1 ] && [ "$(grep -c 'the disk is on fire' err)" = 1 ] && grep -q '^failing: rank 2 on .*: the disk is on fire' err
ok $? "a rank that fails says why, once, with rank and host"
if [ $pmix = 1 ]; then
    dies 0 mpirun --oversubscribe -n 3 ./long
    [ $rc != 0 ] && grep -q '^long: rank [0-2] on .* is lost' err && [ "$(left)" = 0 ]
    ok $? "the same under mpirun"
    run mpirun --oversubscribe -n 3 ./failing
    [ $rc != 0 ] && [ "$(grep -c '^failing: rank 2 on .*: the disk is on fire' err)" = 1 ]
    ok $? "and its error"
fi
BOOT_METHODS=nonsense run ./mlp
[ $rc = 2 ] && grep -q "mlp: unknown bootstrap method 'nonsense'" err
ok $? "a bad environment is a usage error"
WORLD_SIZE=2 RANK=1 run ./mlp
[ $rc = 2 ] && grep -q "mlp: no way to meet the other ranks" err
ok $? "one of several ranks without a way to meet is refused"
echo "1..$n"
exit $bad
