#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Packages of distributions, from the source archive, for the machine that builds them.
#
#   scripts/package.sh deb VERSION       build/dist/deb/*.deb, by packaging/debian
#   scripts/package.sh rpm VERSION       build/dist/rpm/*.rpm, by packaging/fsdp.spec
#
# PACKAGE_OPT chooses optimization and instructions (-O3 -march=x86-64-v2). PACKAGER='Name <address>' is
# who vouches for the packages. JOBS is the number of compilers at a time (all cores).
set -u -o pipefail
die() {
    echo "package: $*" >&2
    exit 1
}
[ $# = 2 ] || { sed -n '3,9s/^# \{0,1\}//p' "$0" >&2; exit 2; }
cd "$(dirname "$0")/.." || exit 1
kind=$1 version=$2 jobs=${JOBS:-$(nproc)}
packager=${PACKAGER:-$(sed -n 's/^Maintainer: //p' packaging/debian/control)}
work=$PWD/build/dist/work-$kind out=$PWD/build/dist/$kind
rm -rf "$work" && mkdir -p "$work" "$out" || exit 1
archive=$(scripts/dist.sh "$version") || exit 1
archive=$PWD/$archive

case $kind in
deb)
    for program in dpkg-buildpackage dh fakeroot; do
        command -v $program >/dev/null ||
            die "$program is missing; root installs it with: apt-get install build-essential debhelper fakeroot"
    done
    tar -C "$work" -xzf "$archive" || exit 1
    cd "$work/libfsdp-$version" || exit 1
    cp -r packaging/debian debian || exit 1
    sed -i "s|^Maintainer: .*|Maintainer: $packager|" debian/control
    # A newer release's packages replace an older one's.
    release=$(. /etc/os-release && echo "${ID}${VERSION_ID:-}")
    printf 'libfsdp (%s+%s) %s; urgency=medium\n\n  * See /usr/share/doc/fsdp-launch/changelog.gz.\n\n -- %s  %s\n' \
        "$version" "$release" unstable "$packager" "$(date -R)" >debian/changelog
    lacks=$(dpkg-checkbuilddeps 2>&1) ||
        die "${lacks#*error: }; root installs them with: apt-get build-dep $work/libfsdp-$version"
    DEB_BUILD_OPTIONS="parallel=$jobs noautodbgsym ${DEB_BUILD_OPTIONS:-}" dpkg-buildpackage -b -uc -us || exit 1
    rm -f "$out"/*.deb
    mv ../*.deb "$out"
    ;;
rpm)
    command -v rpmbuild >/dev/null || die "rpmbuild is missing; it is in rpm-build (Fedora), rpm (Debian)"
    mkdir -p "$work/SOURCES" && cp "$archive" "$work/SOURCES" || exit 1
    # On a distribution without rpm packages, their names cannot be checked.
    nodeps=
    [ -d /var/lib/rpm ] && rpm -q rpm >/dev/null 2>&1 || nodeps=--nodeps
    rpmbuild $nodeps --define "_topdir $work" --define "_smp_mflags -j$jobs" --define "packager $packager" \
        ${PACKAGE_OPT:+--define "package_opt $PACKAGE_OPT"} --define "fsdp_version $version" \
        -bb packaging/fsdp.spec || exit 1
    rm -f "$out"/*.rpm
    mv "$work"/RPMS/*/*.rpm "$out"
    ;;
*) die "'$kind' is neither deb nor rpm" ;;
esac
rm -rf "$work"
ls "$out"/*."$kind"
