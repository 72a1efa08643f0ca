#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The source archive is complete: without git it builds, passes tests and makes the same archive again.
# run: timeout=2400
cd "$TOP" || exit 1
n=0 bad=0
ok() { # status, text
    n=$((n + 1))
    if [ "$1" = 0 ]; then
        echo "ok $n - $2"
    else
        echo "not ok $n - $2"
        bad=1
        tail -n 30 "$TEST_TMP/log" | sed 's/^/# /'
    fi
}
version=$(sed -n 's/^#define FSDP_VERSION_STRING "\(.*\)"/\1/p' libfsdp/include/fsdp/base.h)
make dist >"$TEST_TMP/log" 2>&1 && [ "$(tail -n 1 "$TEST_TMP/log")" = "build/dist/libfsdp-$version.tar.gz" ]
ok $? "make dist"
tar -C "$TEST_TMP" -xzf "build/dist/libfsdp-$version.tar.gz" >"$TEST_TMP/log" 2>&1
ok $? "it unpacks into libfsdp-$version"
cd "$TEST_TMP/libfsdp-$version" || exit 1
[ ! -e .git ] && [ -f LICENSE ] && [ -f NOTICE ] && [ -f CHANGELOG.md ]
ok $? "licence files are in it, git is not"
nice -n 10 make -j2 check-run T="${DIST_TESTS:-tests/house tests/base tests/ckpt/tools.sh}" >"$TEST_TMP/log" 2>&1
ok $? "it builds and passes tests"
grep -E '^[0-9]+ passed' "$TEST_TMP/log" | sed 's/^/# /'
make dist >"$TEST_TMP/log" 2>&1 && tar -tzf "build/dist/libfsdp-$version.tar.gz" | sort >"$TEST_TMP/again" &&
    tar -tzf "$TOP/build/dist/libfsdp-$version.tar.gz" | sort | cmp - "$TEST_TMP/again" >"$TEST_TMP/log" 2>&1
ok $? "the archive made from it has the same files"
echo "1..$n"
exit $bad
