#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The source archive: what git tracks, as it lies in the tree; without git, all files but build's.
#
#   scripts/dist.sh VERSION [FOLDER]     writes FOLDER/libfsdp-VERSION.tar.gz (build/dist)
#
# The same tree gives the same bytes: names sorted, one date (SOURCE_DATE_EPOCH, else the last commit's
# or the newest file's), no owners.
set -u -o pipefail
[ $# -ge 1 ] || { sed -n '3,8s/^# \{0,1\}//p' "$0" >&2; exit 2; }
cd "$(dirname "$0")/.." || exit 1
version=$1 out=${2:-build/dist}

list() {
    if [ -e .git ] && git rev-parse --git-dir >/dev/null 2>&1; then
        # Not what was removed from the tree and is not committed yet.
        git ls-files -z | while IFS= read -r -d '' file; do [ ! -e "$file" ] || printf '%s\0' "$file"; done
    else
        find . -path ./build -prune -o -type f -printf '%P\0' -o -type l -printf '%P\0'
    fi | LC_ALL=C sort -z
}
files=$(list | tr -d '\0' | wc -c)
[ "$files" -gt 0 ] || { echo "dist: no files" >&2; exit 1; }
date=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat -c %Y CHANGELOG.md)}
mkdir -p "$out" || exit 1
list | tar --no-recursion --null -T - --transform "s|^|libfsdp-$version/|S" --owner=0 --group=0 --numeric-owner \
    --mode=u+w,go-w --mtime="@$date" -cf - | gzip -n -9 >"$out/libfsdp-$version.tar.gz.part" ||
    { echo "dist: $out/libfsdp-$version.tar.gz cannot be written" >&2; exit 1; }
mv "$out/libfsdp-$version.tar.gz.part" "$out/libfsdp-$version.tar.gz"
echo "$out/libfsdp-$version.tar.gz"
