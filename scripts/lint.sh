#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Shows what is not in house style (docs/style.md) in the given C files: functions and files over the
# soft limits (shown) and the hard ones (an error), and, where clang-format is at hand, its layout.
# --lengths leaves the layout out.
set -u
status=0 layout=1
[ "${1:-}" != --lengths ] || { layout=0 && shift; }

awk '
    function report(what, nlines, soft, hard) {
        if (nlines > soft)
            printf "%s%s: %d lines\n", (nlines > hard ? "error: " : ""), what, nlines
        if (nlines > hard) bad = 1
    }
    FNR == 1 { if (file) report(file, last, 600, 1000); file = FILENAME; start = 0 }
    { last = FNR }
    # K&R: a function body is what lies between braces in the first column.
    /^[a-z].*\(/ && !/;/ { name = $0; sub(/\(.*/, "", name); sub(/.*[ *]/, "", name) }
    /^\{/ { start = FNR }
    /^\}$/ && start { report(file ":" start ": " name "()", FNR - start + 1, 60, 150); start = 0 }
    END { report(file, last, 600, 1000); exit bad }' "$@" || status=1

if [ $layout = 0 ]; then
    :
elif command -v clang-format >/dev/null; then
    for f; do
        n=$(clang-format "$f" | diff "$f" - | grep -c '^[<>]')
        [ "$n" = 0 ] || { echo "layout: $f: $n lines (make format)" && status=1; }
    done
else
    echo 'no clang-format here (scripts/deps.sh lint): layout not checked'
fi
exit $status
