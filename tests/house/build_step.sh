#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What a quiet build shows: a line for each folder, warnings, errors with their file; the log has all.
set -u
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
step=$TOP/scripts/build_step.sh
begin() { export BUILD_SESSION=$1; }
compile() { # file, sources..., -- command
    "$step" build CC "$1" objects "${@:2}" >>out 2>>err
}

mkdir -p a objects/a
touch a/one.c a/two.c a/old.c a/h.h objects/a/old.o
echo "objects/a/old.o: a/old.c a/h.h" >objects/a/old.d
touch -d '1 minute ago' a/h.h a/old.c

begin first
sources="a/one.c a/two.c a/old.c"
compile a/one.c $sources -- true && compile a/two.c $sources -- true
ok $? "two files are compiled"
ok "$([ "$(cat out)" = "  CC   a (2 files)" ]; echo $?)" "one line names their folder, and counts what is out of date"
ok "$([ ! -s err ]; echo $?)" "nothing else is said"
ok "$([ "$(grep -c '^# CC a/' build/log)" = 2 ]; echo $?)" "the log has both commands"

begin second
touch a/h.h
rm out
compile a/old.c a/old.c -- sh -c 'echo "a/old.c:1: warning: odd" >&2'
ok $? "a warning is no failure"
ok "$(grep -q 'a/old.c:1: warning: odd' err && grep -q 'warning: odd' build/log; echo $?)" "it is shown, and in the log"
ok "$([ "$(cat out)" = "  CC   a (1 file)" ]; echo $?)" "a header makes a file out of date"
ok "$([ "$(grep -c '^# CC' build/log)" = 1 ]; echo $?)" "another run of make begins another log"

: >err
compile a/one.c -- sh -c 'echo "a/one.c:2: error: wrong" >&2; exit 3'
ok "$([ $? = 3 ]; echo $?)" "a failed command's status is passed on"
ok "$(grep -q '^  CC   a/one.c failed; the command is in build/log$' err && grep -q 'a/one.c:2: error: wrong' err; echo $?)" \
    "its file and error are shown"

begin third
for i in 1 2 3 4 5 6 7 8; do
    compile "b/$i.c" -- true &
done
wait
ok "$([ "$(grep -c '^  CC   b$' out)" = 1 ] && [ "$(grep -c '^# CC b/' build/log)" = 8 ]; echo $?)" "steps at the same time share a line and a log"
ok "$(! ls build/.steps | grep -q said; echo $?)" "nothing is left"
echo "1..$n"
exit $bad
