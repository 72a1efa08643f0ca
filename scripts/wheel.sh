#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The wheel of the checkpoint library: build/dist/fsdp_ckpt-VERSION-py3-none-manylinux_2_28_x86_64.whl
#
#   scripts/wheel.sh VERSION
#
# It has the module python/fsdp_ckpt, one shared library for glibc 2.28 and later that needs nothing but the C
# library (its own libraries are linked into it: scripts/wheel_deps.sh), the programs ckpt-* and their manual pages.
# WHEEL_PYTHON is a Python that has ziglang, wheel and auditwheel (scripts/with_python.sh wheel). JOBS is the number
# of compilers at a time (all cores), PACKAGE_OPT the optimization (-O3 -march=x86_64_v2, without AVX).
set -u -o pipefail
die() {
    echo "wheel: $*" >&2
    exit 1
}
[ $# = 1 ] || { sed -n '3,11s/^# \{0,1\}//p' "$0" >&2; exit 2; }
cd "$(dirname "$0")/.." || exit 1
version=$1 platform=manylinux_2_28_x86_64
[ "$(uname -m)" = x86_64 ] || die "wheels are built on x86-64 alone"
[ -n "${WHEEL_PYTHON:-}" ] || die "start me by make wheel"
scripts/wheel_deps.sh || exit 1
deps=$PWD/build/wheel-deps out=$PWD/build/dist work=$PWD/build/dist/work-wheel
tag=py3-none-$platform
name=fsdp_ckpt-$version

PKG_CONFIG_LIBDIR=$deps/lib/pkgconfig make -s -j "${JOBS:-$(nproc)}" B=build/wheel CC="$deps/zig/cc" AR="$deps/zig/ar" \
    OPT="${PACKAGE_OPT:--O3 -march=x86_64_v2}" WITH_ZSTD=1 WITH_CURL=1 WITH_PMIX=0 WITH_HWLOC=0 WITH_MPI=0 WITH_DNNL=0 \
    WITH_CUDA=0 WITH_CAIRO=0 RPATH=0 CBLAS_LIBS= CWARN=-w wheel-files || exit 1

# ---- what goes into it ---------------------------------------------------------------------------

rm -rf "$work" "$work.packed" && mkdir -p "$work.packed" "$work/fsdp_ckpt/bin" "$work/$name.dist-info/licenses" \
    "$work/$name.data/data/share/man/man1" && cd "$work" || exit 1
top=$OLDPWD
cp "$top"/python/fsdp_ckpt/{*.py,py.typed} "$top"/build/wheel/wheel/libckpt.so.* fsdp_ckpt/ &&
    cp "$top"/build/wheel/wheel/bin/* fsdp_ckpt/bin/ && chmod 755 fsdp_ckpt/bin/* fsdp_ckpt/libckpt.so.* || exit 1
info=$name.dist-info
for program in fsdp_ckpt/bin/*; do
    cp "$top/docs/man/${program##*/}.1" "$name.data/data/share/man/man1/" || exit 1
done
cp "$top/LICENSE" "$top/NOTICE" "$info/licenses/" && for source in "$deps"/licenses/*; do
    cp "$source" "$info/licenses/${source##*/}.txt"
done || exit 1
{
    cat <<END
Metadata-Version: 2.4
Name: fsdp-ckpt
Version: $version
Summary: Checkpoints of sharded training: read, merge, reshard, verify
License-Expression: Apache-2.0 AND BSD-3-Clause AND MIT AND curl
Requires-Python: >=3.9
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: Python :: 3
Provides-Extra: numpy
Requires-Dist: numpy; extra == "numpy"
Provides-Extra: torch
Requires-Dist: torch; extra == "torch"
Description-Content-Type: text/markdown
END
    for file in LICENSE NOTICE; do echo "License-File: $file"; done
    for source in "$deps"/licenses/*; do echo "License-File: ${source##*/}.txt"; done
    echo
    cat "$top/docs/python.md"
    echo
    echo "The library holds, each under its own licence:"
    echo
    sed 's/^/- /; s/$/ (Debian)/' "$deps/versions"
} >"$info/METADATA"
printf 'Wheel-Version: 1.0\nGenerator: libfsdp (%s)\nRoot-Is-Purelib: false\nTag: %s\n' "$version" "$tag" >"$info/WHEEL"
{
    echo '[console_scripts]'
    for program in fsdp_ckpt/bin/*; do echo "${program##*/} = fsdp_ckpt.__main__:program"; done
} >"$info/entry_points.txt"

# ---- packed: the same tree gives the same bytes --------------------------------------------------

cd "$top" || exit 1
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat -c %Y CHANGELOG.md)}
find "$work" -type f ! -perm -100 -exec chmod 644 {} +
"$WHEEL_PYTHON" -m wheel pack "$work" -d "$work.packed" >"$work.log" 2>&1 || { cat "$work.log" >&2; exit 1; }
wheel=$work.packed/$name-$tag.whl
seen=$("$WHEEL_PYTHON" -m auditwheel show "$wheel" 2>&1) || die "$seen"
case $(tr '\n' ' ' <<<"$seen") in
*'consistent with'*"\"$platform\""*) ;;
*) die "auditwheel sees another platform than $platform: $seen" ;;
esac
mv "$wheel" "$out/" && rm -rf "$work" "$work.packed" "$work.log"
echo "build/dist/$name-$tag.whl"
