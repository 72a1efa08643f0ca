#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Installs a list of files, and removes exactly those again.
#
#   scripts/install.sh check PREFIX LIBDIR               fails if nothing can be installed there
#   scripts/install.sh install LIST MANIFEST [DESTDIR]   copies what LIST says; writes MANIFEST
#   scripts/install.sh uninstall MANIFEST [DESTDIR]      removes what MANIFEST says
#
# A line of LIST is `MODE SOURCE DESTINATION` (link TARGET DESTINATION for a symbolic link), of MANIFEST
# `CHECKSUM DESTINATION`, `link:TARGET DESTINATION` or `folder DESTINATION`. What somebody else has put in a
# file's place, or has changed, stays, and is named.
set -u -o pipefail

die() {
    echo "install: $*" >&2
    exit 1
}
sum() { cksum <"$1" | tr ' ' :; }

# Is it still what was installed?
is_ours() { # checksum, path
    case $1 in
    link:*) [ -L "$2" ] && [ "$(readlink "$2")" = "${1#link:}" ] ;;
    *) [ -f "$2" ] && [ ! -L "$2" ] && [ "$(sum "$2")" = "$1" ] ;;
    esac
}

make_folder() { # path below dest: makes it, and the ones above that are missing; says which
    local parent
    [ ! -d "$dest$1" ] || return 0
    parent=$(dirname "$1")
    [ "$parent" = "$1" ] || make_folder "$parent" || return
    mkdir -m 755 "$dest$1" && echo "folder $1" >>"$new"
}

remove_one() { # checksum, path: what was installed
    if is_ours "$1" "$dest$2"; then
        rm -f "$dest$2" || die "$dest$2 cannot be removed"
    elif [ -e "$dest$2" ] || [ -L "$dest$2" ]; then
        echo "install: $dest$2 was changed after it was installed, and stays" >&2
    fi
}

# What was installed up to here, or before, can be uninstalled.
give_up() { # why
    { cat "$new" && echo "$known"; } | awk 'NF && !seen[$2]++' >"$dest$manifest"
    die "$1"
}

install_list() { # list, manifest
    local mode from to known was manifest=$2
    new=$(mktemp) || exit 1
    trap 'rm -f "$new"' EXIT
    known=
    [ ! -f "$dest$2" ] || known=$(<"$dest$2")
    # A folder of an earlier installation is still ours to remove.
    grep '^folder ' <<<"$known" >>"$new"
    make_folder "$(dirname "$2")" || die "$dest$(dirname "$2") cannot be made: choose another PREFIX, or DESTDIR"
    while read -r mode from to; do
        make_folder "${to%/*}" || give_up "$dest${to%/*} cannot be made"
        if [ "$mode" = link ]; then
            ln -sfnT "$from" "$dest$to" || give_up "$dest$to cannot be made"
            echo "link:$from $to" >>"$new"
            continue
        fi
        # A site's own settings outlive an update; the new file lies next to it.
        if [ "$mode" = site ]; then
            was=$(awk -v to="$to" '$2 == to { print $1 }' <<<"$known") mode=644
            if [ -e "$dest$to" ] && ! is_ours "${was:-none}" "$dest$to" && ! cmp -s "$from" "$dest$to"; then
                echo "install: $dest$to was changed, and stays; the new one is $to.new" >&2
                # Recorded as it was, so that it counts as changed the next time, too.
                echo "${was:-none} $to" >>"$new"
                to=$to.new
            fi
        fi
        # A new file under the name: programs that run keep theirs.
        install -m "$mode" "$from" "$dest$to.part$$" && mv -fT "$dest$to.part$$" "$dest$to" ||
            { rm -f "$dest$to.part$$"; give_up "$dest$to cannot be written"; }
        echo "$(sum "$dest$to") $to" >>"$new"
    done <"$1"
    # What an earlier version has installed and this one has not.
    while read -r mode to; do
        [ -z "$to" ] || [ "$mode" = folder ] || grep -q -F -x -e "$to" <(cut -d' ' -f2 "$new") || remove_one "$mode" "$to"
    done <<<"$known"
    install -m 644 "$new" "$dest$2" || die "$dest$2 cannot be written"
}

uninstall_list() { # manifest
    local what to
    [ -f "$dest$1" ] || die "$dest$1 is not there: nothing is installed under this PREFIX and DESTDIR"
    while read -r what to; do
        [ "$what" = folder ] || remove_one "$what" "$to"
    done <"$dest$1"
    local folders
    folders=$(sed -n 's/^folder //p' "$dest$1" | sort -r)
    rm -f "$dest$1"
    while read -r to; do
        # One that holds other people's files stays.
        [ -z "$to" ] || rmdir "$dest$to" 2>/dev/null
    done <<<"$folders"
    return 0
}

action=${1:-} dest=
case $action in
check)
    for path in "$2" "$3"; do
        [[ $path == /* ]] || die "'$path' is no absolute path: PREFIX and libdir begin with a slash (DESTDIR need not)"
        [[ ! $path =~ [^A-Za-z0-9_./+@,~=-] ]] ||
            die "'$path': PREFIX and libdir may have letters, digits and _./+@,~=- alone, because pkg-config files, modulefiles and PATH hold them"
    done
    ;;
install | uninstall)
    given=${!#}
    [ $action = install ] && [ $# -lt 4 ] && given=
    [ $action = uninstall ] && [ $# -lt 3 ] && given=
    if [ -n "$given" ]; then
        [ $action = uninstall ] || mkdir -p "$given" || exit 1
        dest=$(cd "$given" && pwd) || die "$given: no such folder"
        [ "$dest" != / ] || dest=
    fi
    ${action}_list "$2" "${3:-}"
    ;;
*)
    sed -n '3,11s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
