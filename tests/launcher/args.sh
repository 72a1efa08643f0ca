#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The command line of fsdp-launch: for each line of tests/data/launch-args.txt its exit status, and what
# it prints. ARGS_RECORD=FILE writes them as they are now.
cd "$TEST_TMP" || exit 1
L=$BIN/tests/launcher/test_launch
unset RANK WORLD_SIZE
echo "fake: {}" >run.yaml
host=$(hostname)
# What differs from machine to machine and from run to run.
mask() { sed -E "/ \((GCC|Clang) /d; s/$host/HOST/g; s/has [0-9]+ cores, at most [0-9]+/has N cores, at most N/; s/(version|fsdp-launch) [0-9.]+\$/\1 V/"; }
shown() { # arguments: one line
    timeout -k 5 60 "$L" "$@" >out 2>err </dev/null
    local rc=$?
    echo "$rc: $( ([ $rc = 0 ] && sort out || cat out err) | mask | head -n 3 | paste -sd '|')"
}
n=0 bad=0
while IFS= read -r command && IFS= read -r expected; do
    eval "args=($command)"
    got=$(shown "${args[@]}")
    [ -z "${ARGS_RECORD:-}" ] || printf '%s\n%s\n' "$command" "$got" >>"$ARGS_RECORD"
    n=$((n + 1))
    if [ "$got" = "$expected" ]; then
        echo "ok $n - fsdp-launch $command"
    else
        echo "not ok $n - fsdp-launch $command"
        echo "# expected $expected"
        echo "# got      $got"
        bad=1
    fi
done <"${ARGS_TABLE:-$TOP/tests/data/launch-args.txt}"
echo "1..$n"
exit $bad
