#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# fsdp-launch as a person meets it. The ranks' program is tests/launcher/fake_program.h.
L=$BIN/tests/launcher/test_launch
unset RANK WORLD_SIZE OMP_NUM_THREADS OPENBLAS_NUM_THREADS
echo "fake: {}" >c.yaml
host=$(hostname)
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
run() { # arguments of the launcher
    timeout -k 5 60 "$L" "$@" >out 2>err
    rc=$?
}
start() { # arguments of the launcher, which continues in the background as $launcher
    "$L" "$@" >out 2>err &
    launcher=$!
}
finish() {
    wait $launcher 2>>noise # the shell tells of its killed children
    rc=$?
}
last() { # expected last line of stderr
    [ "$(tail -n 1 err)" = "$1" ]
}
await() { # file
    for ((i = 0; i < 600; i++)); do
        [ -e "$1" ] && return 0
        sleep 0.05
    done
    return 1
}
command -v ps >/dev/null || {
    echo "Bail out! no ps: what stays behind cannot be seen"
    exit 1
}
runs() { # what to look for in the process table; without a look, it is taken to be there
    local table
    table=$(ps -eo stat=,args=) && [[ $table == *"${L##*/}"* || $table == *bash* ]] || return 0
    grep -v -e '^Z' -e grep <<<"$table" | grep -q -F -e "$1"
}
left() { # the same, half a minute long
    for ((i = 0; i < 600; i++)); do
        runs "$1" || return 1
        sleep 0.05
    done
    return 0
}
alive() { # a pid
    [[ $(cat "/proc/$1/stat" 2>/dev/null) == *") "[!Z]* ]]
}
gone() { # a pid
    for ((i = 0; i < 600; i++)); do
        alive "$1" || return 0
        sleep 0.05
    done
    return 1
}
insist() { # a signal, until the launcher ends: two that meet before it looks would be one
    while alive $launcher; do
        kill "-$1" $launcher
        sleep 0.5
    done
}

# ---- ranks and their environment ----

run -n 4 --nodes 2 c.yaml
[ $rc = 0 ] && [ "$(sort out | sed -n 3p)" = \
    "rank 2 of 4, local 0 of 2, node 1 of 2, host $host/node1, method local" ] &&
    [ "$(wc -l <out)" = 4 ] && [ ! -s err ]
ok $? "4 ranks as 2 nodes"
run c.yaml
[ $rc = 0 ] && [ "$(cat out)" = "rank 0 of 1, local 0 of 1, node 0 of 1, host $host, method single" ]
ok $? "one rank without -n"
run -v -n 2 c.yaml
[ $rc = 0 ] && grep -q "boot: pmix: no PMIx server" err && grep -q "boot: local: " err &&
    grep -q "2 ranks on 1 node have met through local" err && grep -q verbose out
ok $? "-v traces the methods"
# shellcheck disable=SC2016
SLURM_PROCID=7 SLURM_NTASKS=9 PMIX_RANK=3 OMPI_COMM_WORLD_SIZE=5 RANK=8 OMPI_MCA_btl=x KEEP=me \
    run -n 2 --nodes=2 -- sh -c 'echo "$RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $NODE_RANK" \
        "$MASTER_ADDR ${SLURM_PROCID-} ${SLURM_NTASKS-} ${PMIX_RANK-} ${OMPI_COMM_WORLD_SIZE-}" \
        "$OMPI_MCA_btl $KEEP"; test "$MASTER_PORT" -gt 0'
[ $rc = 0 ] && [ "$(sort out | xargs)" = "0 0 2 1 0 127.0.0.1 x me 1 0 2 1 1 127.0.0.1 x me" ]
ok $? "a program's environment, other launchers' traces removed"
# shellcheck disable=SC2016
run -n 2 -- sh -c 'echo $OMP_NUM_THREADS $OPENBLAS_NUM_THREADS'
want=$(($(nproc) / 2)) && [ $want -ge 1 ] || want=1
[ "$(sort -u out)" = "$want $want" ]
ok $? "cores are shared out"
# shellcheck disable=SC2016
OMP_NUM_THREADS=5 run -n 2 -- sh -c 'echo $OMP_NUM_THREADS ${OPENBLAS_NUM_THREADS-none}'
[ "$(sort -u out)" = "5 none" ]
ok $? "unless the user has done so"
run -n 2 -- "$L" -n 2 c.yaml
[ $rc = 0 ] && [ "$(grep -c 'of 2, local . of 2, node 0 of 1' out)" = 4 ]
ok $? "a launcher within a rank"
echo hello | "$L" -n 2 -- cat >out 2>err
[ "$(cat out)" = hello ]
ok $? "rank 0 reads the launcher's input"

# ---- how it ends ----

run -n 3 -- sh -c 'exit $((RANK == 1 ? 42 : 0))'
[ $rc = 42 ] && last "fsdp-launch: rank 1 on $host exited with code 42"
ok $? "a program's exit code"
run -n 2 -- sh -c 'kill -6 $$'
[ $rc = 134 ] && grep -q "was killed by signal 6" err
ok $? "a program's signal"
PATH=/usr/bin:/bin run -n 3 -- no-such-program x # of folders that all may look into
[ $rc = 127 ] && [ "$(cat err)" = "fsdp-launch: no-such-program: No such file or directory" ]
ok $? "a program that is not there"
printf '#!/bin/sh\n' >here.sh && chmod +x here.sh
PATH=/usr/bin:/bin run -n 2 -- here.sh
[ $rc = 127 ] && [ "$(cat err)" = "fsdp-launch: here.sh: not found in PATH; the one in this folder is ./here.sh" ]
ok $? "nor one that is in this folder alone"
run -n 2 -- ./c.yaml
[ $rc = 126 ] && [ "$(cat err)" = "fsdp-launch: ./c.yaml: Permission denied" ]
ok $? "a program that is none"
run -n 4 --nodes 2 c.yaml fake.mode=kill fake.rank=2
[ $rc = 76 ] && last "fsdp-launch: rank 2 on $host (node1) was killed by signal 9 (Killed)" &&
    [ "$(grep -c "noticed: rank 2 on $host/node1 is lost" err)" = 3 ]
ok $? "a rank that is killed"
# A sanitizer would take the signal for itself.
ASAN_OPTIONS=${ASAN_OPTIONS:-}:handle_segv=0 UBSAN_OPTIONS=${UBSAN_OPTIONS:-}:handle_segv=0 \
    TSAN_OPTIONS=${TSAN_OPTIONS:-}:handle_segv=0 run -n 3 c.yaml fake.mode=segv fake.rank=0
[ $rc = 1 ] && last "fsdp-launch: rank 0 on $host was killed by signal 11 (Segmentation fault)"
ok $? "a rank that crashes: the same would happen again"
run -n 3 c.yaml fake.mode=exit fake.code=0
[ $rc = 76 ] && grep -q "noticed: rank 1 on $host is lost" err
ok $? "a rank that leaves without goodbye"
run -n 3 c.yaml fake.mode=fail "fake.text=the disk is on fire"
[ $rc = 1 ] && last "fsdp-launch: rank 1 on $host failed: the disk is on fire (exit code 1)" &&
    [ "$(grep -c 'noticed: rank 1 .* gave up (code 1): the disk is on fire' err)" = 2 ]
ok $? "last words reach the others and the last line"
run -n 3 c.yaml fake.mode=return fake.code=9
[ $rc = 9 ] && last "fsdp-launch: rank 1 on $host failed: see its messages above (exit code 9)"
ok $? "a rank whose program fails"
run -n 3 c.yaml fake.mode=together "fake.text=16 rows do not divide"
[ $rc = 1 ] && last "fsdp-launch: rank 2 on $host failed: 16 rows do not divide (exit code 1)"
ok $? "a mistake of all: the rank that says it is named, although it ends last"

start -n 3 c.yaml fake.mode=stop "fake.text=$PWD/a"
await a.0 && await a.1 && await a.2 && kill -9 "$(cat a.1)"
finish
[ $rc = 76 ] && last "fsdp-launch: rank 1 on $host was killed by signal 9 (Killed)" &&
    gone "$(cat a.0)"
ok $? "kill -9 from outside"
start -n 3 c.yaml fake.mode=deaf fake.rank=2 "fake.text=$PWD/b"
await b.0
finish
[ $rc = 76 ] && last "fsdp-launch: rank 2 on $host was killed by signal 9 (Killed)"
ok $? "ranks that hear nothing are ended"

# ---- requests to stop ----

start -n 3 c.yaml fake.mode=stop "fake.text=$PWD/s"
await s.0 && await s.1 && await s.2 && kill -TERM $launcher
finish
[ $rc = 75 ] && [ "$(sort out | xargs)" = "rank 0 saved rank 1 saved rank 2 saved" ] && [ ! -s err ]
ok $? "SIGTERM: save and requeue"
start -n 2 c.yaml fake.mode=stop "fake.text=$PWD/u"
await u.0 && await u.1 && kill -USR1 $launcher
finish
[ $rc = 75 ]
ok $? "SIGUSR1 as well"
start -n 2 -- sh -c 'trap "" TERM; touch t.$RANK; while :; do sleep 0.1; done'
await t.0 && await t.1 && insist TERM
finish
[ $rc = 143 ] && last "fsdp-launch: ended on a second request (signal 15)"
ok $? "a second SIGTERM kills"
start c.yaml fake.mode=long "fake.text=$PWD/long"
await long.0 && insist TERM
finish
[ $rc = 143 ]
ok $? "a second SIGTERM ends a process alone"
start -n 2 c.yaml fake.mode=long "fake.text=$PWD/long2"
await long2.0 && await long2.1 && insist TERM
finish
[ $rc = 143 ] && last "fsdp-launch: ended on a second request (signal 15)"
ok $? "and ranks in a long set-up"
start -n 2 c.yaml fake.mode=stop "fake.text=$PWD/twice"
# Stopped, it sees them together however slow this shell is.
await twice.0 && await twice.1 && for sig in STOP TERM INT CONT; do kill -$sig $launcher; done
finish
[ $rc = 75 ]
ok $? "two at once are one"
id=4321.$$ # seconds of sleep that nobody else sleeps
start -n 2 -- sh -c "touch p.\$RANK; exec sleep $id"
await p.0 && await p.1 && kill -TERM $launcher
finish
[ $rc = 143 ] && ! left "sleep $id"
ok $? "a program gets SIGTERM"

# ---- nothing stays ----

run -n 2 c.yaml fake.mode=children fake.text=$id
[ $rc = 0 ] && ! left "sleep $id"
ok $? "children of ranks, also those in sessions of their own"
run -n 2 c.yaml fake.mode=shm fake.text=$id
# shellcheck disable=SC2010
[ $rc = 76 ] && ! left "sleep $id" && ! ls /dev/shm | grep -q "^fsdp-.*-test-$id-"
ok $? "after a kill: processes and shared memory"
run -n 2 c.yaml fake.mode=segment
[ $rc = 76 ] && grep -q 'rank 0 on .* was killed by signal 9' err &&
    [ "$(grep -c '^pid' out)" = 2 ] &&
    ! sed -n 's/^pid \(.*\)/fsdp-\1-/p' out | grep -q -F -f - <(ls /dev/shm)
ok $? "a communicator's shared memory, of a rank killed while making it"
start -n 2 -- sh -c "touch k.\$RANK; sleep $id; true"
await k.0 && await k.1 && runs "sleep $id" && kill -9 $launcher
finish
! left "sleep $id"
ok $? "after kill -9 of the launcher"
start -n 2 c.yaml fake.mode=stop "fake.text=$PWD/l"
await l.0 && await l.1 && kill -9 $launcher
finish
! left "fake.mode=stop fake.text=$PWD/l"
ok $? "ranks that train, and the guard, too"

# ---- output ----

run -n 4 c.yaml fake.mode=lines
bad_out=$(grep -v -c -E '^(out [0-3] [0-9]+ abcdefghijklmnopqrstuvwxyz|last [0-3])$' out)
bad_err=$(grep -v -c -E '^err [0-3] [0-9]+ abcdefghijklmnopqrstuvwxyz$' err)
[ $rc = 0 ] && [ "$(wc -l <err)" = 1200 ] && [ "$bad_err" = 0 ] &&
    [ "$(grep -c -E '^(last 0)?out' out)" = 1200 ] && [ "$bad_out" -le 1 ]
ok $? "whole lines, none lost"
run -n 3 --prefix-output c.yaml
[ "$(grep -c '^\[rank 1\] rank 1 of 3' out)" = 1 ] && grep -q '^rank 0 of 3' out
ok $? "--prefix-output"
run -n 2 -- sh -c '[ "$RANK" = 0 ] || printf "no end"'
[ "$(od -An -c out | tr -d ' ')" = 'noend\n' ]
ok $? "an unfinished last line"
"$L" -n 3 -- sh -c '[ "$RANK" = 0 ] || seq 1 400000' 2>err | { sleep 1; cat >out; }
rc=$?
[ "$(sort -n out | uniq -c | awk '$1 != 2' | wc -l)" = 0 ] && [ "$(wc -l <out)" = 800000 ]
ok $? "a slow reader loses nothing"
timeout 100 "$L" -n 3 -- sh -c '[ "$RANK" = 0 ] || seq 1 400000' 2>err | head -n 1 >out
rc=${PIPESTATUS[0]}
[ "$rc" != 124 ]
ok $? "a reader that leaves holds up nobody"

# A reader that takes nothing: the test itself holds the pipe open.
mkfifo stalled
exec 7<>stalled
"$L" -n 3 -- sh -c '[ "$RANK" = 0 ] || seq 1 100000; exit $RANK' >stalled 2>err &
launcher=$!
finish
[ $rc != 0 ] && grep -q "exited with code" err
ok $? "a reader that has stalled does not keep a failed job from its end"
exec 7>&-
exec 7<>stalled
"$L" -n 2 -- sh -c '[ "$RANK" = 0 ] || seq 1 20000; touch "e.$RANK"' >stalled 2>err &
launcher=$!
await e.0 && await e.1 && insist TERM
finish
[ $rc = 143 ] && last "fsdp-launch: ended on a second request (signal 15)"
ok $? "nor a job from its end on the second request"
exec 7>&-

# ---- the command line ----

run --help
[ $rc = 0 ] && grep -q "Usage: fsdp-launch" out && [ ! -s err ]
ok $? "--help"
run --version
[ $rc = 0 ] && grep -q -E '^fsdp-launch [0-9]+\.[0-9]+' out
ok $? "--version"
run --print-config c.yaml a.b=1 c.d=2
[ $rc = 0 ] && [ "$(cat out)" = "config c.yaml, 2 overrides a.b=1 c.d=2" ]
ok $? "--print-config"
run --print-config a.b=1
[ "$(cat out)" = "config none, 1 overrides a.b=1" ]
ok $? "--print-config without a file"
run c.yaml -n 2 a.b=1 --nodes 2
[ $rc = 0 ] && grep -q "rank 1 of 2.*node1" out
ok $? "options after the configuration"

refused() { # pattern, arguments...
    local pattern=$1
    shift
    run "$@"
    [ $rc = 2 ] && grep -q -e "$pattern" err && [ ! -s out ] && [ "$(wc -l <err)" -le 2 ]
    ok $? "refused: $*"
}
refused "nothing to run" -v
refused "unknown option --nose" --nose c.yaml
refused "-n 0: expected a whole number" -n 0 c.yaml
refused "-n 2x: expected a whole number" -n 2x c.yaml
refused "-n needs a value: -n N" c.yaml -n
refused "at most" -n 100000 c.yaml
refused "does not divide" -n 4 --nodes 3 c.yaml
refused "more nodes than the 2 ranks" -n 2 --nodes 3 c.yaml
refused "-n is missing" --nodes 2 c.yaml
refused "--timeout -1: expected a number above 0" --timeout -1 c.yaml
refused "no program after --" -n 2 --
refused "at once" c.yaml -- true
refused "expected section.key=value" c.yaml nonsense
refused "name the configuration first" a.b=c
refused "missing.yaml: No such file" -n 2 missing.yaml
refused "launch is a program, not a configuration: put -- before it" -n 2 "$BIN/fsdp-launch"
cp "$BIN/fsdp-launch" a-program
refused "put -- before it, as in -- ./a-program" -n 2 a-program
refused "mode refuse is refused" -n 2 c.yaml fake.mode=refuse
SLURM_NTASKS=4 refused "SLURM_NTASKS=4 says that there are more ranks" c.yaml
SLURM_NTASKS=4 refused "SLURM_NTASKS=4 says that there are more ranks" -- true

echo "1..$n"
exit $bad
