#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The Dockerfile, built by buildah on a clean root of Debian; programs run in the image.
# run: timeout=3600
cd "$TOP" || exit 1
skip() {
    echo "1..0 # SKIP $1"
    exit 0
}
command -v buildah >/dev/null || skip "buildah is missing"
[ "$(id -u)" = 0 ] || skip "clean roots need root"
command -v mmdebstrap >/dev/null || skip "mmdebstrap is missing"
export STORAGE_DRIVER=vfs BUILDAH_ISOLATION=chroot XDG_DATA_HOME=$TEST_TMP/data
buildah() { nice -n "${PACKAGES_NICE:-10}" buildah --root "$TEST_TMP/store" --runroot "$TEST_TMP/run" "$@"; }
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
c=$(buildah from scratch 2>"$TEST_TMP/log") || skip "buildah does not run here: $(tail -n 1 "$TEST_TMP/log")"
scripts/root.sh make bookworm "$TEST_TMP/root" >"$TEST_TMP/log" 2>&1
tar -C "$TEST_TMP/root" --exclude=./proc --exclude=./sys --exclude=./dev -cf "$TEST_TMP/base.tar" . &&
    buildah add -q "$c" "$TEST_TMP/base.tar" / >"$TEST_TMP/log" 2>&1 && buildah commit -q "$c" localhost/base >>"$TEST_TMP/log" 2>&1
ok $? "a clean root as an image"
buildah bud --network=host --pull-never --build-arg BASE=localhost/base -t localhost/fsdp -f packaging/Dockerfile . \
    >"$TEST_TMP/log" 2>&1
ok $? "buildah builds packaging/Dockerfile on it"
c=$(buildah from --pull-never localhost/fsdp 2>"$TEST_TMP/log") && buildah run --network=host "$c" -- fsdp-launch --version >"$TEST_TMP/log" 2>&1 &&
    grep -q '^fsdp-launch ' "$TEST_TMP/log"
ok $? "fsdp-launch runs in the image"
buildah run --network=host "$c" -- sh -c 'cd /tmp && fsdp-launch -n 2 /usr/share/fsdp/examples/llama-tiny.yaml train.steps=2 checkpoint.path=ckpt &&
    ckpt-merge ckpt -o merged' >"$TEST_TMP/log" 2>&1
ok $? "two ranks train there, and their checkpoint is merged"
echo "1..$n"
exit $bad
