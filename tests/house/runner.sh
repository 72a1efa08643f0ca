#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The runner sees every way in which a test can fail.
n=0 bad=0
ok() { # status, text
    n=$((n + 1))
    if [ "$1" = 0 ]; then
        echo "ok $n - $2"
    else
        echo "not ok $n - $2"
        [ ! -f out ] || sed 's/^/# /' out
        bad=1
    fi
}

runner=$TOP/tests/run
mkdir -p tests/a
write() { # name; the script on stdin
    rm -f tests/a/*
    cat >"tests/a/$1.sh"
}
run() { # expected status, expected last line, text, options of the runner...
    local status=$1 line=$2 text=$3
    shift 3
    TOP=$PWD TMPDIR=$PWD TEST_SANITIZER= "$runner" "$@" >out 2>&1
    local rc=$?
    [ $rc = "$status" ] && [ "$(tail -n 1 out)" = "$line" ]
    ok $? "$text"
}

write good <<'END'
[ "$PWD" = "$TEST_TMP" ] && touch file && echo "ok 1"
echo "ok 2 # SKIP no such device"
echo "1..2"
END
run 0 "1 passed, 0 failed, 1 skipped" "good"
grep -q "skipped: no such device" out && [ -z "$(ls -d fsdp-tests.* 2>/dev/null)" ]
ok $? "a skip's reason is shown, scratch folders are removed"
echo 'a/good  no such *' >allow
run 0 "1 passed, 0 failed, 1 skipped" "a skip that is allowed" --allow-skips allow
echo 'a/other  no such *' >allow
run 1 "1 passed, 1 failed, 1 skipped" "a skip that is not allowed" --allow-skips allow

write noplan <<<'echo "ok 1"'
run 1 "1 passed, 1 failed, 0 skipped" "no plan"
write short <<<'echo "ok 1"; echo 1..2'
run 1 "1 passed, 1 failed, 0 skipped" "fewer results than planned"
write status <<<'echo "ok 1"; echo 1..1; exit 3'
run 1 "1 passed, 1 failed, 0 skipped" "a bad exit status"
write lie <<<'echo "not ok 1"; echo 1..1'
run 1 "0 passed, 2 failed, 0 skipped" "a good exit status with a failure"
write failure <<<'echo "not ok 1 - thing"; echo "# reason"; echo words >&2; echo 1..1; exit 1'
run 1 "0 passed, 1 failed, 0 skipped" "a failure"
grep -q "not ok 1 - thing" out && grep -q "# reason" out && grep -q "| words" out
ok $? "its details are shown"
kept=$(sed -n 's/.*scratch folder kept: //p' out)
[ -d "$kept" ]
ok $? "its scratch folder is kept"
write crash <<<'echo "ok 1"; echo 1..1; ulimit -c 0; kill -SEGV $$'
run 1 "1 passed, 1 failed, 0 skipped" "a crash"
grep -q SIGSEGV out
ok $? "names its signal"
write slow <<'END'
# run: timeout=5
echo "ok 1"; sleep 600; echo 1..1
END
run 1 "1 passed, 1 failed, 0 skipped" "one that does not end"
write empty <<<'echo 1..0'
run 0 "0 passed, 0 failed, 1 skipped" "a plan of nothing is a skip"
write nothing </dev/null
run 1 "0 passed, 1 failed, 0 skipped" "an empty test"
write leaves <<<'sleep 600 & echo "ok 1"; echo 1..1'
run 1 "1 passed, 1 failed, 0 skipped" "a process left behind"
write escapes <<'END'
setsid sleep 600 & echo $! >"$TOP/escaped"
echo "ok 1"; echo 1..1
END
run 1 "1 passed, 1 failed, 0 skipped" "one left in a session of its own"
grep -q "left processes running" out && ! grep -q sleep "/proc/$(cat escaped)/cmdline" 2>/dev/null
ok $? "is told and killed"
write other <<<'sleep 0.3 & setsid sleep 0.3 & echo "ok 1"; echo 1..1'
run 0 "1 passed, 0 failed, 0 skipped" "processes that end in a moment"
write early <<'END'
echo "ok 1 - early"
for _ in $(seq 600); do grep -q "ok 1 - early" "$TOP/out" && break; sleep 0.1; done
grep -q "ok 1 - early" "$TOP/out" && echo "ok 2"
echo "not ok 3 - late"; echo "1..3"; exit 1
END
run 1 "2 passed, 1 failed, 0 skipped" "-v -j 1 shows a result as it comes" -v -j 1
[ "$(grep -c "ok . - early\|ok 3 - late" out)" = 2 ]
ok $? "and once"
write b <<<'echo "ok 1"; echo 1..1'
sed '1i # run: timeout=60\n# run: long' tests/a/b.sh >tests/a/c.sh
sed '1i # run: alone' tests/a/b.sh >tests/a/a.sh
run 0 "3 passed, 0 failed, 0 skipped" "-j 1 runs three tests" -j 1
[ "$(sed -n 's|^ok  *a/\([abc]\) .*|\1|p' out | paste -sd ' ')" = "c b a" ]
ok $? "long ones first, and last those that run alone"
rm -f tests/a/*
run 2 "tests/run: no tests" "no test at all"

echo "1..$n"
exit $bad
