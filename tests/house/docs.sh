#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# docs/README.md leads to every page, and its answers exist; CONTRIBUTING.md has every folder on its map.
cd "$TOP" || exit 1
n=0 bad=0
check() { # text, offenders
    n=$((n + 1))
    if [ -z "$2" ]; then
        echo "ok $n - $1"
    else
        echo "not ok $n - $1"
        sed 's/^/# /' <<<"$2"
        bad=1
    fi
}

check "docs/README.md names every page" "$(for page in docs/*.md; do
    name=${page#docs/}
    [ "$name" = README.md ] || grep -q "]($name)" docs/README.md || echo "$name"
done)"
# `path` `symbol`: the file defines it.
answers=$(grep -o '`[a-z0-9_/]*\.[ch]` `[A-Za-z0-9_]*`' docs/README.md | tr -d '`')
check "its answers are places" "$(while read -r path symbol; do
    { [ -f "$path" ] && grep -q -E "^[a-z#].*\b$symbol(\(|\[)" "$path"; } || echo "$path $symbol"
done <<<"$answers")"
check "and there are some" "$([ "$(wc -l <<<"$answers")" -ge 8 ] || echo "$answers")"
# A folder is on the map, or below one that names it in its row.
check "CONTRIBUTING.md has every folder of sources" "$(
    find libfsdp launcher ckpt models \( -name '*.c' -o -name '*.h' -o -name '*.cu' \) -exec dirname {} + | sort -u |
        while read -r folder; do
            case $folder in */include/*) continue ;; esac
            grep -q "^| \`$folder\`" CONTRIBUTING.md ||
                grep "^| \`${folder%/*}\`" CONTRIBUTING.md | grep -q "\`${folder##*/}\`" || echo "$folder"
        done)"
check "its folders exist" "$(grep -o '^| `[a-z0-9_/]*`' CONTRIBUTING.md | tr -d '|` ' | while read -r folder; do
    [ -d "$folder" ] || echo "$folder"
done)"
# Patterns are places, too; foo, AREA and NAME stand for the reader's own.
missing_files() { # documents
    grep -h -o -E '`[a-zA-Z0-9_./*-]+/[a-zA-Z0-9_.*-]+\.(c|h|cu|cuh|sh|py|map)`' "$@" | tr -d '`' | sort -u |
        grep -v -E 'foo|AREA|NAME' | while read -r path; do
        compgen -G "$path" >/dev/null || compgen -G "libfsdp/$path" >/dev/null ||
            compgen -G "libfsdp/include/$path" >/dev/null || compgen -G "ckpt/include/$path" >/dev/null ||
            compgen -G "launcher/include/$path" >/dev/null || echo "$path"
    done
}
check "every source file that the documents name is there" \
    "$(missing_files README.md CONTRIBUTING.md docs/*.md docs/results/*.md models/README.md)"
echo 'See `models/stack*.c`.' >"$TEST_TMP/doc.md"
check "one that is not would be seen" "$(missing_files "$TEST_TMP/doc.md" | grep -q . || echo no)"
echo "1..$n"
exit $bad
