#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The build's switches: what is missing is named before anything is compiled.
# run: timeout=900
cd "$TOP" || exit 1

n=0 bad=0
expect() { # expected (ok|fail), pattern of the output, text, make's arguments...
    local want=$1 pattern=$2 text=$3 out rc got=ok
    shift 3
    out=$(make "$@" 2>&1)
    rc=$?
    n=$((n + 1))
    [ $rc = 0 ] || got=fail
    if [ $got = "$want" ] && grep -q -e "$pattern" <<<"$out"; then
        echo "ok $n - $text"
    else
        echo "not ok $n - $text"
        tail -n 5 <<<"$out" | sed 's/^/# /'
        bad=1
    fi
}
expect ok '^check ' "make list" list
expect fail 'use auto, 1 or 0' "a switch with another value" WITH_PMIX=yes list
expect ok 'LD .*own/bin' "programs in a folder of one's own" "B=$TEST_TMP/own" tools
expect ok '-c -o ' "other flags compile anew, whatever is linked already" -n OPT=-O0 \
    "B=$TEST_TMP/own" tools
export PKG_CONFIG_LIBDIR=$TEST_TMP
expect fail "does not find 'pmix'.*scripts/deps.sh" "WITH_PMIX=1 without PMIx" WITH_PMIX=1 list
expect ok '^check ' "WITH_PMIX=auto without PMIx" list
expect fail 'missing: .*libjansson-dev' "required packages that are missing" OPT=-O0 "B=$TEST_TMP/b"
expect fail 'Install them with: make deps ' "what to type" OPT=-O0 "B=$TEST_TMP/b"
expect fail 'gcc .*C compiler' "the compiler that is missing" CC=no-such-cc OPT=-O0 "B=$TEST_TMP/b"
expect ok '^  libopenblas-dev  *openblas-devel  *matrix' "make deps-list" deps-list
expect fail 'nvcc, its .*set CUDA_HOME' "WITH_CUDA=1 without CUDA" WITH_CUDA=1 "CUDA_HOME=$TEST_TMP" list
expect ok '^check ' "WITH_CUDA=auto without CUDA" "CUDA_HOME=$TEST_TMP" list
expect fail 'need CUDA, which this build has not' "NCCL without CUDA" WITH_NCCL=1 WITH_CUDA=0 list
expect fail 'a sanitizer build has no CUDA' "CUDA under a sanitizer" WITH_CUDA=1 SANITIZE=-fsanitize=address list
expect ok 'rm -rf' "cleaning needs none of them" -n clean


lists() { # pattern that the list of missing packages has, pattern that it has not ('' none), text
    local list
    list=$("$TOP/scripts/deps.sh" --dry-run build 2>&1)
    n=$((n + 1))
    if grep -q -e "$1" <<<"$list" && { [ -z "$2" ] || ! grep -q -e "$2" <<<"$list"; }; then
        echo "ok $n - $3"
    else
        echo "not ok $n - $3"
        sed 's/^/# /' <<<"$list"
        bad=1
    fi
}
unset WITH_PMIX WITH_HWLOC WITH_ZSTD WITH_DNNL WITH_MPI CBLAS_LIBS
# libisal and jansson alone: what `make tools` needs.
mkdir "$TEST_TMP/few"
for p in libisal jansson; do
    cp "$(env -u PKG_CONFIG_LIBDIR pkg-config --variable=pcfiledir $p)/$p.pc" "$TEST_TMP/few"
done
PKG_CONFIG_LIBDIR=$TEST_TMP/few expect ok 'LD .*few/bin' "make tools with libisal and jansson alone" \
    "B=$TEST_TMP/few" tools
n=$((n + 1))
if "$TEST_TMP/few/bin/ckpt-info" --version | grep -q -e '-pmix -hwloc -zstd -curl'; then
    echo "ok $n - such a tool says what it is without"
else
    echo "not ok $n - such a tool says what it is without"
    bad=1
fi
cat >"$TEST_TMP/cross" <<'END'
#!/bin/sh
[ "$1" != -dumpmachine ] || { echo riscv64-linux-gnu; exit; }
exec cc "$@"
END
chmod +x "$TEST_TMP/cross"
expect ok '-c -o ' "a compiler for another processor" -n "CC=$TEST_TMP/cross" "B=$TEST_TMP/few" tools
n=$((n + 1))
if make -n "CC=$TEST_TMP/cross" "B=$TEST_TMP/few" tools | grep -q -e -march=; then
    echo "not ok $n - gets no -march of this machine"
    bad=1
else
    echo "ok $n - gets no -march of this machine"
fi
lists pmix '' "deps.sh lists PMIx"
CC=no-such-cc lists openblas '' "and OpenBLAS, where there is no cblas.h"
WITH_PMIX=0 WITH_HWLOC=0 WITH_ZSTD=0 WITH_DNNL=0 CBLAS_LIBS=-lblas lists jansson 'pmix\|hwloc\|openblas\|zstd\|dnnl' "but not what a build does without"
expect ok "WITH_PMIX='0' WITH_HWLOC='0' WITH_ZSTD='0' WITH_DNNL='0' WITH_MPI='0' .*CBLAS_LIBS='-lblas'" "make passes that on" -n deps WITH_PMIX=0 WITH_HWLOC=0 WITH_ZSTD=0 WITH_DNNL=0 WITH_MPI=0 CBLAS_LIBS=-lblas
expect ok "CBLAS_LIBS=''" "and its own choice is none" -n deps

echo "1..$n"
exit $bad
