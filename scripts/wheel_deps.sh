#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The libraries of a wheel, built from Debian's sources as static archives for any glibc from 2.28 on.
#
#   scripts/wheel_deps.sh [--versions]
#
# They go to build/wheel-deps, with pkg-config files, and are built once: remove the folder for newer ones
# (`make clean` leaves it). --versions shows which ones are there. WHEEL_PYTHON is a Python that has ziglang
# (scripts/with_python.sh wheel). JOBS is the number of compilers at a time (all cores). About 9 minutes on
# 2 cores, of which OpenSSL takes 6.
set -u -o pipefail
top=$(cd "$(dirname "$0")/.." && pwd)
deps=$top/build/wheel-deps
release=bookworm
jobs=${JOBS:-$(nproc)}

die() {
    echo "wheel_deps: $*" >&2
    exit 1
}

# The same recipe has built the same: the file says which.
recipe() { sed '/^#/d' "$0" | cksum; }
is_built() { [ -f "$deps/.done" ] && [ "$(cat "$deps/.done")" = "$(recipe)" ]; }

case ${1:-} in
'') ;;
--versions)
    is_built || die "nothing is built yet"
    cat "$deps/versions"
    exit
    ;;
*)
    sed -n '3,10s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
! is_built || exit 0

# ---- sources -------------------------------------------------------------------------------------

mirror() {
    sed -n 's/^URIs: *\([^ ]*\).*/\1/p; s/^deb .*\(https\{0,1\}:[^ ]*\).*/\1/p' /etc/apt/sources.list \
        /etc/apt/sources.list.d/*.sources /etc/apt/sources.list.d/*.list 2>/dev/null | grep -m 1 '/debian/*$'
}

# Lists and settings of apt in a folder of their own: this machine's stay as they are.
fetch() { # packages...
    local package dsc from
    from=$(mirror)
    mkdir -p apt/{lists,cache,parts} source || return
    : >apt/status
    cat >apt/sources <<END
deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] ${from:-http://deb.debian.org/debian} $release main
END
    cat >apt/conf <<END
APT::Sandbox::User "";
Dir::State::status "$PWD/apt/status";
Dir::State::lists "$PWD/apt/lists";
Dir::Cache "$PWD/apt/cache";
Dir::Etc::sourcelist "$PWD/apt/sources";
Dir::Etc::sourceparts "-";
END
    export APT_CONFIG=$PWD/apt/conf
    apt-get update -q || return
    cd source || return
    apt-get source -q --download-only "${@/%//$release}" || return
    for dsc in *.dsc; do
        package=${dsc%%_*}
        dpkg-source --no-check -x "$dsc" "$package" || return
        echo "$package $(sed -n 's/^Version: *//p' "$dsc" | head -n 1)" >>../versions
    done
    cd ..
    unset APT_CONFIG
}

# ---- recipes: each in its source's folder --------------------------------------------------------

pc() { # name, version, Libs
    mkdir -p "$prefix/lib/pkgconfig"
    printf 'Name: %s\nDescription: %s\nVersion: %s\nCflags: -I%s/include\nLibs: -L%s/lib %s\n' \
        "$1" "$1" "$2" "$prefix" "$prefix" "$3" >"$prefix/lib/pkgconfig/$1.pc"
}
by_cmake() { # options...
    cmake -S . -B objects -DCMAKE_BUILD_TYPE=Release -DCMAKE_C_COMPILER="$zig/cc" -DCMAKE_AR="$zig/ar" \
        -DCMAKE_RANLIB="$zig/ranlib" -DCMAKE_POSITION_INDEPENDENT_CODE=ON -DBUILD_SHARED_LIBS=OFF \
        -DCMAKE_INSTALL_PREFIX="$prefix" -DCMAKE_INSTALL_LIBDIR=lib "$@" &&
        cmake --build objects -j "$jobs" && cmake --install objects
}

build_libzstd() {
    make -j "$jobs" -C lib install-static install-includes install-pc CC="$zig/cc" AR="$zig/ar" CFLAGS='-O3 -fPIC' PREFIX="$prefix"
}
# Its checksums alone.
build_libisal() {
    make -f Makefile.unx -j "$jobs" units=crc lib CC="$zig/cc" CFLAGS_='-O2 -fPIC' lib_name=bin/isa-l.a &&
        mkdir -p "$prefix/include/isa-l" "$prefix/lib" && cp include/*.h "$prefix/include/isa-l/" &&
        cp bin/isa-l.a "$prefix/lib/libisal.a" && pc libisal 2.30.0 -lisal
}
build_jansson() {
    by_cmake -DJANSSON_BUILD_DOCS=OFF -DJANSSON_WITHOUT_TESTS=ON -DJANSSON_EXAMPLES=OFF
}
# Its sources by hand: with Debian's patches, the configuration that its cmake writes does not compile.
build_expat() {
    cd expat/lib || return
    cat >expat_config.h <<END
#define BYTEORDER 1234
#define HAVE_GETRANDOM 1
#define XML_CONTEXT_BYTES 1024
#define XML_DTD 1
#define XML_GE 1
#define XML_NS 1
END
    local file
    for file in xmlparse xmlrole xmltok; do
        "$zig/cc" -O2 -fPIC -I. -c -o $file.o $file.c || return
    done
    "$zig/ar" rcs "$prefix/lib/libexpat.a" xmlparse.o xmlrole.o xmltok.o &&
        cp expat.h expat_external.h "$prefix/include/" && pc expat 2.5.0 -lexpat
}
build_openssl() {
    export PATH=$zig:$PATH # the library shows how its compiler was called
    CC=cc AR=ar RANLIB=ranlib ./Configure linux-x86_64 no-shared no-tests no-engine no-dso no-legacy \
        no-async no-comp no-dtls no-ssl3 no-weak-ssl-ciphers no-idea no-seed no-camellia no-aria no-sm2 no-sm3 no-sm4 \
        no-gost no-srp no-rc2 no-rc4 no-rc5 no-mdc2 no-whirlpool no-ui-console --prefix=/usr --libdir=lib --openssldir=/etc/ssl -fPIC &&
        make -j "$jobs" build_generated && make -j "$jobs" libssl.a libcrypto.a &&
        cp libssl.a libcrypto.a "$prefix/lib/" && cp -r include/openssl "$prefix/include/" &&
        pc libcrypto 3.0 '-lcrypto -ldl -lpthread' && pc libssl 3.0 '-lssl -lcrypto -ldl -lpthread'
}
# HTTP over OpenSSL, and no certificates of its own: ckpt/store/s3/http.c looks where distributions have them.
build_curl() {
    by_cmake -DHTTP_ONLY=ON -DBUILD_CURL_EXE=OFF -DCURL_USE_OPENSSL=ON -DOPENSSL_ROOT_DIR="$prefix" \
        -DOPENSSL_USE_STATIC_LIBS=ON -DCURL_ZLIB=OFF -DUSE_NGHTTP2=OFF -DUSE_LIBIDN2=OFF -DCURL_USE_LIBPSL=OFF \
        -DCURL_USE_LIBSSH2=OFF -DCURL_CA_BUNDLE=none -DCURL_CA_PATH=none -DCURL_DISABLE_LDAP=ON &&
        pc libcurl 7.88.1 '-lcurl -lssl -lcrypto -ldl -lpthread'
}

# ---- all of it -----------------------------------------------------------------------------------

for program in cmake nasm dpkg-source perl; do
    command -v $program >/dev/null || die "$program is missing; scripts/deps.sh wheel installs what building a wheel needs"
done
[ -n "${WHEEL_PYTHON:-}" ] || die "start me by scripts/with_python.sh wheel"
work=$deps.tmp
# Paths of the finished folder are in pkg-config's files.
prefix=$deps
zig=$deps/zig
rm -rf "$work" "$deps"
mkdir -p "$work" "$prefix/lib" "$prefix/include" "$zig" "$prefix/licenses" && cd "$work" || exit 1
for tool in cc ar ranlib; do
    target=
    [ $tool != cc ] || target="-target x86_64-linux-gnu.2.28 '-ffile-prefix-map=$top/='"
    cat >"$zig/$tool" <<END
#!/bin/sh
[ "\$1" != -dumpmachine ] || { echo x86_64-linux-gnu; exit; }
ZIG_GLOBAL_CACHE_DIR='$zig/cache' ZIG_LOCAL_CACHE_DIR='$zig/cache' exec '$WHEEL_PYTHON' -m ziglang $tool $target "\$@"
END
    chmod 755 "$zig/$tool"
done

packages=(libzstd libisal jansson expat openssl curl)
echo "Building ${packages[*]} for wheels into $deps (once; about 9 minutes)" >&2
fetch "${packages[@]}" >log 2>&1 || { tail -n 20 log >&2; die "Debian's sources could not be fetched"; }
export PKG_CONFIG_LIBDIR=$prefix/lib/pkgconfig
for package in "${packages[@]}"; do
    source=$(cd source && ls -d "$package" "${package/libzstd/zstd}" "${package/libisal/isa-l}" 2>/dev/null | head -n 1)
    echo "  $(grep "^$source " versions)" >&2
    if ! (cd "source/$source" && "build_$package") </dev/null >log 2>&1; then
        tail -n 30 log >&2
        die "$package could not be built; the log is $work/log"
    fi
    cp "source/$source/debian/copyright" "$prefix/licenses/$source" || exit 1
done
mv versions "$prefix/versions" && cd "$top" && recipe >"$prefix/.done" && rm -rf "$work"
