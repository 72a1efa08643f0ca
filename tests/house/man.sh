#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The manual knows the options that --help knows, and no other; links between documents lead somewhere; the engine's
# settings and its advice have the names that the configuration has.
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
    help=$("$program" --help 2>&1 | awk '/^Examples:/ { on = 1 } /^Exit status:/ { on = 0 } !on' | options)
    man=$(cat "docs/man/$name.1" 2>/dev/null |
        awk '/^\.SH (EXAMPLES|SEE)/ { on = 0 } /^\.SH (OPTIONS|SYNOPSIS)/ { on = 1 } on' |
        sed -e 's/\\f[BIRP]//g' -e 's/\\-/-/g' | options)
    check "$name --help says something" "$([ -n "$help" ] || echo nothing)"
    check "$name --help fits 80 columns" "$("$program" --help | awk 'length > 80')"
    check "$name: every option is in the manual" "$(comm -23 <(echo "$help") <(echo "$man"))"
    # An entry's first line follows .TP; else it is text of the entry before.
    check "$name: every option has an entry of its own" "$(comm -23 \
        <("$program" --help | awk '/^Examples:/ { exit } /^ +-/' | sed -E 's/^ +(-[a-zA-Z], )?(-[-a-zA-Z]+).*/\1\2/' | options) \
        <(sed -e 's/\\f[BIRP]//g' -e 's/\\-/-/g' "docs/man/$name.1" | awk 'tag { print } { tag = $0 == ".TP" }' | options))"
    check "$name: no option of the manual is invented" "$(comm -13 <(echo "$help") <(echo "$man"))"
done

for page in docs/man/*.[13]; do
    check "$page has examples and SEE ALSO" "$(for part in EXAMPLES 'SEE ALSO'; do grep -q -x ".SH $part" "$page" || echo "$part"; done)"
    if command -v mandoc >/dev/null; then
        check "$page: mandoc has no warning" "$(mandoc -T lint -W warning "$page" 2>&1)"
    else
        n=$((n + 1))
        echo "ok $n # SKIP no mandoc"
    fi
done
for program in "$BIN"/*; do
    [ -f "$program" ] || continue
    check "$(basename "$program") --help has the parts of all programs" \
        "$(for part in 'Usage:' 'Help:$' 'Examples:$' 'Exit status:$'; do "$program" --help | grep -q "^$part" || echo "$part"; done
            [ "$("$program" --help | awk '/^$/ { on = 0 } on { n++ } /^Examples:/ { on = 1 } END { print n }')" = 3 ] || echo 'not three examples')"
done

all_keys=$("$BIN"/fsdp-launch --print-config | awk '/^[a-z]+:/ { at = $1; sub(":", "", at) }
    /^  (# )?[a-z_]+:/ { sub(/^  (# )?/, ""); sub(/:.*/, ""); print at "." $0 }' | sort -u)
keys=$(grep -E '^(fsdp|optim|model)\.' <<<"$all_keys")
settings=$(sed -n -E 's/^    ROW\(([a-z]+), ([a-z_]+),.*/\1.\2/p' libfsdp/include/fsdp/settings.h | sort -u)
check "the engine's table has settings" "$([ "$(wc -l <<<"$settings")" -gt 30 ] || echo "$settings")"
check "every setting of the engine has a key's name" "$(comm -13 <(echo "$keys") <(echo "$settings"))"
advised=$(sed -n '/ knobs\[\] = {/,/^};/p' libfsdp/core/create/advice.c | grep -o -E '[a-z]+_[a-z_]+[ )]' | tr -d ' )' | sort -u)
check "every setting that advice names is in the engine's table" \
    "$(comm -13 <(sed 's/.*\.//' <<<"$settings" | sort -u) <(echo "$advised"))"

# Not the names of files and of a model's modules, and not the key of an error that is shown.
named_keys() {
    grep -h -o -E '(^|[^a-zA-Z_/.-])(model|data|train|optim|fsdp|checkpoint|log)\.[a-z_]+($|[^a-zA-Z_.(])' "$@" |
        grep -o -E '[a-z]+\.[a-z_]+' | grep -v -x -F train.stepz | grep -v -E '\.(c|h|md|pt|py|sh|sif|sbatch|safetensors|yaml|embed_tokens|layers)$' | sort -u
}
# The first column of two documents has the keys of other programs.
ours=$(ls docs/*.md | grep -v -x -E 'docs/(migrate|torchtitan)\.md')
# shellcheck disable=SC2086
check "every key that the documents name exists" \
    "$(comm -23 <(named_keys README.md $ours docs/man/* models/README.md \
        <(sed 's/^| [^|]*|/|/' docs/migrate.md docs/torchtitan.md)) <(echo "$all_keys"))"
echo 'Set `fsdp.grad_slots` to 2.' >"$TEST_TMP/doc.md"
check "another would be seen" "$(comm -23 <(named_keys "$TEST_TMP/doc.md") <(echo "$all_keys") | grep -q . || echo no)"

broken=
for doc in README.md docs/*.md models/README.md; do
    while read -r link; do
        [ -e "$(dirname "$doc")/$link" ] || broken+="$doc: $link"$'\n'
    done < <(grep -o -E '\]\([^)#:]+\)' "$doc" | tr -d '])(')
done
check "links between documents" "$broken"

echo "1..$n"
exit $bad
