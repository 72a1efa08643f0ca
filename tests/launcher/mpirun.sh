#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The pmix method against a real PMIx server, mpirun's.
L=$BIN/tests/launcher/test_launch
unset RANK WORLD_SIZE
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
if ! command -v mpirun >/dev/null; then
    echo "1..0 # SKIP no mpirun here (Debian: openmpi-bin)"
    exit 0
fi
echo "fake: {}" >c.yaml
echo "leak:libpmix" >lsan # the PMIx library keeps a few bytes
export LSAN_OPTIONS=${LSAN_OPTIONS:-}:suppressions=$PWD/lsan:print_suppressions=0
if ! timeout -k 5 60 mpirun --oversubscribe -n 1 "$L" -v c.yaml 2>&1 | grep -q 'pmix: PMIX_RANK'; then
    echo "1..0 # SKIP built without PMIx, or mpirun serves none"
    exit 0
fi
n=0 bad=0
ok() { # status, text
    n=$((n + 1))
    if [ "$1" = 0 ]; then
        echo "ok $n - $2"
    else
        echo "not ok $n - $2"
        echo "# rc $rc"
        sed 's/^/# out: /' out | head -n 20
        sed 's/^/# err: /' err | head -n 20
        bad=1
    fi
}
run() { # ranks, arguments of the launcher...
    local nranks=$1
    shift
    timeout -k 5 100 mpirun --oversubscribe -n "$nranks" "$L" "$@" >out 2>err
    rc=$?
}

run 4 -v c.yaml
[ $rc = 0 ] && [ "$(grep -c 'of 4, local . of 4, node 0 of 1, .*method pmix' out)" = 4 ] &&
    grep -q "have met through pmix" err
ok $? "4 ranks meet"
run 1 c.yaml
[ $rc = 0 ] && grep -q 'rank 0 of 1.*method pmix' out
ok $? "1 rank"
run 3 c.yaml fake.mode=kill fake.rank=1
[ $rc != 0 ] && grep -q "fsdp-launch: rank 1 on .* is lost" err
ok $? "a rank that is killed is named"
run 3 c.yaml fake.mode=kill fake.rank=0
[ $rc != 0 ] && grep -q "fsdp-launch: rank 0 on .* is lost" err
ok $? "rank 0, too"
run 3 c.yaml fake.mode=fail fake.rank=2 "fake.text=the disk is on fire"
[ $rc = 1 ] || [ $rc = 76 ] && grep -q "fsdp-launch: rank 2 on .*the disk is on fire" err
ok $? "last words"
run 3 c.yaml fake.mode=refuse
[ $rc = 2 ] && [ "$(grep -c 'mode refuse is refused' err)" = 1 ]
ok $? "a bad configuration is refused once"
run 2 -n 5 c.yaml
[ $rc = 2 ] && grep -q -e "-n 5, but whoever started" err
ok $? "-n that says something else"
run 2 -n 2 c.yaml
[ $rc = 0 ]
ok $? "-n that says the same"
# shellcheck disable=SC2016
run 3 -- sh -c 'echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $NODE_RANK $MASTER_ADDR; echo port $MASTER_PORT'
[ $rc = 0 ] && [ "$(grep -v port out | sort | xargs)" = \
    "0 0 3 3 0 127.0.0.1 1 1 3 3 0 127.0.0.1 2 2 3 3 0 127.0.0.1" ] &&
    [ "$(grep port out | sort -u | wc -l)" = 1 ]
ok $? "a foreign program"
BOOT_METHODS=single run 2 c.yaml
[ $rc = 2 ] && grep -q "says that" err
ok $? "no singles among several ranks"

echo "1..$n"
exit $bad
