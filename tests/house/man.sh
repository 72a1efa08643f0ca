#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The manual knows the options that --help knows, and no other; links between documents lead somewhere.
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
options() { grep -o -E -e '(^|[^-a-zA-Z0-9])--?[a-zA-Z][-a-z]*' | grep -o -E -e '--?[a-zA-Z].*' | sort -u; }

for program in "$BIN"/*; do
    [ -f "$program" ] || continue
    name=$(basename "$program")
    help=$("$program" --help 2>&1 | options)
    man=$(cat "docs/man/$name.1" 2>/dev/null |
        awk '/^\.SH (EXAMPLES|SEE)/ { on = 0 } /^\.SH (OPTIONS|SYNOPSIS)/ { on = 1 } on' |
        sed -e 's/\\f[BIRP]//g' -e 's/\\-/-/g' | options)
    check "$name --help says something" "$([ -n "$help" ] || echo nothing)"
    check "$name --help fits 80 columns" "$("$program" --help | awk 'length > 80')"
    check "$name: every option is in the manual" "$(comm -23 <(echo "$help") <(echo "$man"))"
    check "$name: no option of the manual is invented" "$(comm -13 <(echo "$help") <(echo "$man"))"
done

broken=
for doc in README.md docs/*.md models/README.md; do
    while read -r link; do
        [ -e "$(dirname "$doc")/$link" ] || broken+="$doc: $link"$'\n'
    done < <(grep -o -E '\]\([^)#:]+\)' "$doc" | tr -d '])(')
done
check "links between documents" "$broken"

echo "1..$n"
exit $bad
