#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Clean roots of Debian, and commands in them: what a build needs and what a package lacks show only
# where nothing else is installed.
#
#   scripts/root.sh make SUITE ROOT [PACKAGE ...]   a root of bookworm, trixie, ... in the folder ROOT
#   scripts/root.sh copy ROOT OTHER                 another root like it
#   scripts/root.sh enter [--bind DIR:INSIDE] [--ro DIR:INSIDE] [--set NAME=VALUE] ROOT COMMAND [ARGUMENT ...]
#   scripts/root.sh remove ROOT
#
# A root has apt, make and nothing else that was not asked for (mmdebstrap's variant apt). `make` keeps an
# archive of it in build/roots, so that the next root is only unpacked. DEBIAN_MIRROR names another mirror.
#
# `enter` starts the command in namespaces of its own: nothing stays mounted, and every process ends with
# it. The command sees neither the host's environment nor its files, but those that --bind and --ro show
# (a path INSIDE begins with a slash). It runs in /, with a /tmp in memory.
set -u -o pipefail

die() {
    echo "root.sh: $*" >&2
    exit 1
}
usage() {
    sed -n '3,17s/^# \{0,1\}//p' "$0"
    exit "$1"
}
case ${1:-} in
-h | --help) usage 0 ;;
make | copy | enter | remove) ;;
*) usage 2 >&2 ;;
esac
[ "$(id -u)" = 0 ] || die "clean roots need root, or a container whose root you are"
cache=$(cd "$(dirname "$0")/.." && pwd)/build/roots

# An existing folder is never written into, and one without /etc/debian_version never removed.
is_root() { [ -f "$1/etc/debian_version" ]; }

make_root() {
    [ $# -ge 2 ] || usage 2 >&2
    local suite=$1 root=$2 kept
    shift 2
    local IFS=,
    kept=$cache/$suite${*:+-$(cksum <<<"$*" | cut -d' ' -f1)}.tar
    [ ! -e "$root" ] || die "$root exists"
    if [ ! -f "$kept" ]; then
        command -v mmdebstrap >/dev/null || die "mmdebstrap is missing: apt-get install mmdebstrap"
        mkdir -p "$cache" || exit 1
        mmdebstrap --quiet --variant=apt --include="make${*:+,$*}" "$suite" "$kept.part.$$" \
            "${DEBIAN_MIRROR:-http://deb.debian.org/debian}" --format=tar ||
            { rm -f "$kept.part.$$"; die "no root of $suite could be made"; }
        mv "$kept.part.$$" "$kept" || exit 1
    fi
    mkdir -p "$root" || exit 1
    tar -C "$root" -xf "$kept" || die "$root: cannot unpack $kept"
}

# In namespaces of its own, from here on: argument 1 is the root, then binds as MODE DIR INSIDE up to --.
inside='
    set -e
    root=$1; shift
    mount --make-rprivate /
    mount --bind "$root" "$root"
    cd "$root"
    mount -t proc proc proc
    mount -t sysfs -o ro sysfs sys
    mount --rbind /dev dev
    mount -t tmpfs tmpfs tmp
    chmod 1777 tmp
    while [ "$1" != -- ]; do
        mkdir -p "./$3"
        mount --bind "$2" "./$3"
        [ "$1" = bind ] || mount -o remount,bind,ro "./$3"
        shift 3
    done
    shift
    mkdir -p .host
    pivot_root . .host
    cd /
    # A small root has no umount of its own, and takes that of the host with its libraries.
    export PATH=/usr/sbin:/usr/bin:/sbin:/bin
    if ! command -v umount >/dev/null; then
        for libs in /.host/lib/$(uname -m)-linux-gnu /.host/lib64; do
            loader=$(ls "$libs"/ld-linux* 2>/dev/null | head -n 1)
            [ -z "$loader" ] || break
        done
        "$loader" --library-path "$libs" /.host/bin/umount -l /.host
    else
        umount -l /.host
    fi
    rmdir .host
    exec "$@"'

enter_root() {
    local binds=() sets=()
    while [ $# -gt 0 ]; do
        case $1 in
        --bind | --ro)
            [ $# -ge 2 ] && [[ $2 == *:/* ]] || die "$1 takes DIR:/INSIDE"
            binds+=("${1#--}" "$(realpath "${2%%:*}")" "${2#*:}")
            [ -d "${2%%:*}" ] || die "${2%%:*}: no such folder"
            shift 2
            ;;
        --set)
            sets+=("${2:?}")
            shift 2
            ;;
        -*) die "unknown option $1" ;;
        *) break ;;
        esac
    done
    [ $# -ge 2 ] || usage 2 >&2
    local root
    is_root "$1" || die "$1: no root of Debian"
    root=$(realpath "$1")
    shift
    for name in http_proxy https_proxy no_proxy; do
        [ -z "${!name:-}" ] || sets+=("$name=${!name}")
    done
    [ ! -e /etc/resolv.conf ] || cp -L --remove-destination /etc/resolv.conf "$root/etc/resolv.conf"
    # The first word of a command may be a program of the root: env looks for it there.
    exec unshare --mount --pid --fork --kill-child -- bash -c "$inside" root.sh "$root" ${binds[@]+"${binds[@]}"} -- \
        env -i HOME=/root LANG=C.UTF-8 TERM="${TERM:-dumb}" DEBIAN_FRONTEND=noninteractive \
        PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin ${sets[@]+"${sets[@]}"} "$@"
}

action=$1
shift
case $action in
make) make_root "$@" ;;
copy)
    [ $# = 2 ] || usage 2 >&2
    is_root "$1" || die "$1: no root of Debian"
    [ ! -e "$2" ] || die "$2 exists"
    cp -a "$1" "$2"
    ;;
enter) enter_root "$@" ;;
remove)
    [ $# = 1 ] || usage 2 >&2
    is_root "$1" || die "$1: no root of Debian"
    rm -rf --one-file-system "$1"
    ;;
esac
