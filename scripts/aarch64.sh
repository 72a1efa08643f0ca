#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds for aarch64 on another machine and runs tests under qemu.
#
#   scripts/aarch64.sh [sysroot|build|TEST...]
#
# The libraries are Debian's packages for arm64, unpacked below build/aarch64 (of this machine's own
# release; nothing is installed for it). TEST as for tests/run; default: tests of base, core, ckpt, nn
# and comm. AARCH64_OPT (-O3) are the optimizations; AARCH64_LONG=1 runs the slowest tests, too.
# Emulation says nothing about speed, nor about a processor's own order of memory accesses.
set -u -o pipefail
top=$(cd "$(dirname "$0")/.." && pwd)
cd "$top" || exit 1
root=$top/build/aarch64
sys=$root/sys
libdir=$sys/usr/lib/aarch64-linux-gnu
qemu=$(command -v qemu-aarch64-static)
packages=(libc6 libc6-dev libisal-dev libjansson-dev libyaml-dev libssl-dev libpcre2-dev libutf8proc-dev
    zlib1g-dev libzstd-dev libcurl4-openssl-dev libexpat1-dev libhwloc-dev libpmix-dev libopenblas-dev)

die() {
    echo "aarch64: $*" >&2
    exit 1
}

# ---- the sysroot ---------------------------------------------------------------------------------

fetch() { # where to
    local at=$1 mirror release
    mirror=$(sed -n 's/^URIs: *\([^ ]*\).*/\1/p; s/^deb .*\(https\{0,1\}:[^ ]*\).*/\1/p' /etc/apt/sources.list \
        /etc/apt/sources.list.d/*.sources /etc/apt/sources.list.d/*.list 2>/dev/null | grep -m 1 '/debian/*$')
    release=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
    [ -n "$release" ] || die "only Debian's packages are known"
    mkdir -p "$at"/apt/{lists,cache,parts} "$at/debs/partial"
    : >"$at/apt/status"
    cat >"$at/apt/sources" <<END
deb [arch=arm64 signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] ${mirror:-http://deb.debian.org/debian} $release main
END
    cat >"$at/apt/conf" <<END
APT::Architecture "arm64";
APT::Architectures { "arm64"; };
APT::Sandbox::User "";
Dir::State::status "$at/apt/status";
Dir::State::lists "$at/apt/lists";
Dir::Cache "$at/apt/cache";
Dir::Etc::sourcelist "$at/apt/sources";
Dir::Etc::sourceparts "-";
END
    export APT_CONFIG=$at/apt/conf
    apt-get update -q || die "the package lists of arm64 could not be fetched"
    apt-get install -q -y --download-only --no-install-recommends "${packages[@]}" -o "Dir::Cache::archives=$at/debs" ||
        die "the packages of arm64 could not be fetched"
    unset APT_CONFIG
}

# Links of packages are absolute, and the alternatives that apt would choose are missing.
complete() { # sysroot
    local link to
    find "$1" -type l -lname '/*' | while read -r link; do
        to=$(readlink "$link")
        ln -sfnr "$1$to" "$link"
    done
    local lib=$1/usr/lib/aarch64-linux-gnu blas
    blas=$(dirname "$(find "$lib" -name 'libopenblas.so.0' -path '*pthread*' | head -n 1)")
    for link in libblas.so.3 liblapack.so.3 libopenblas.so libopenblas.so.0; do
        ln -sfr "$blas/$link" "$lib/$link"
    done
    cp "$blas"/pkgconfig/openblas.pc "$lib/pkgconfig/"
}

make_sysroot() {
    local deb at=$root/new
    [ -e "$sys/.done" ] && return
    rm -rf "$sys" "$at"
    mkdir -p "$sys"
    fetch "$at" >"$root/log" 2>&1 || { tail -n 20 "$root/log" >&2; exit 1; }
    for deb in "$at"/debs/*.deb; do
        dpkg -x "$deb" "$sys" || die "cannot unpack $deb"
    done
    complete "$sys" && : >"$sys/.done"
    rm -rf "$at"
}

# ---- build and run -------------------------------------------------------------------------------

# The cross compiler's own libraries come first, pkg-config sees the sysroot alone.
export PKG_CONFIG_SYSROOT_DIR=$sys PKG_CONFIG_LIBDIR=$libdir/pkgconfig:$sys/usr/share/pkgconfig
settings=(B=build/aarch64 CC="aarch64-linux-gnu-gcc --sysroot=$sys" AR=aarch64-linux-gnu-ar
    OBJCOPY=aarch64-linux-gnu-objcopy LD=aarch64-linux-gnu-ld OPT="${AARCH64_OPT:--O3}" WITH_CUDA=0 WITH_MPI=0 WITH_DNNL=0)

build() {
    make "-j$(nproc)" "${settings[@]}" "$@" || die "the build failed"
}

# A namespace of users has a binfmt_misc of its own since Linux 6.7: nothing is registered outside.
emulated() { # command...
    local magic='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
    local mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
    export TEST_EMULATOR=qemu QEMU_LD_PREFIX=$sys
    BINFMT=":fsdp-aarch64:M::$magic:$mask:$qemu:F" unshare -Urm bash -c '
        mount -t binfmt_misc none /proc/sys/fs/binfmt_misc &&
            printf "%s" "$BINFMT" >/proc/sys/fs/binfmt_misc/register || {
            echo "aarch64: no binfmt_misc in a user namespace (Linux 6.7 has it)" >&2
            exit 1
        }
        exec "$@"' - "$@"
}

# What takes minutes under emulation.
slow='test_(strikes|commit|merge|orders|plan_large|random_damage|faults|fuzz)$'
chosen() { # from the sources: the tests of these parts, with the longest (of comm) first
    local t
    for t in tests/{comm,base,core,ckpt}/test_*.c tests/models/test_{nn,nn_dtypes}.c tests/device/test_*.c; do
        t=${t%.c}
        [[ $t == *cuda* || $t == *nccl* ]] || { [ -z "${AARCH64_LONG:-}" ] && [[ $t =~ $slow ]]; } || echo "$t"
    done
}

[ "$(uname -m)" != aarch64 ] || die "this machine is one: make check"
command -v aarch64-linux-gnu-gcc >/dev/null && [ -n "$qemu" ] || die "scripts/deps.sh aarch64 installs what is missing"
case ${1:-} in
-h | --help) sed -n '3,12s/^# \{0,1\}//p' "$0" && exit ;;
esac
make_sysroot
[ "${1:-}" != sysroot ] || exit 0
[ "${1:-}" != build ] || { build all && exit; }
if [ $# = 0 ]; then
    mapfile -t tests < <(chosen)
else
    tests=("$@")
fi
programs=()
for t in "${tests[@]}"; do
    for f in ${t%.c}.c; do
        [ ! -f "$f" ] || programs+=("build/aarch64/bin/${f%.c}")
    done
done
build all "${programs[@]}"
TOP=$top BIN=$root/bin TEST_CC="${settings[1]#CC=}" emulated tests/run "${tests[@]}"
