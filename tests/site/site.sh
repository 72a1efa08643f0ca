#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# make site: every link and anchor leads somewhere, pages are valid, Chromium shows them and finds a word.
cd "$TOP" || exit 1
n=0 bad=0
check() { # text, offenders
    n=$((n + 1))
    if [ -z "$2" ]; then
        echo "ok $n - $1"
    else
        echo "not ok $n - $1"
        sed 's/^/# /' <<<"$2" | head -n 40
        bad=1
    fi
}
site=${SITE:-$TEST_TMP/site}
said=$(scripts/site.sh "$site" 2>&1) || said+=$'\n'"exit status $?"
check "the site is built and says of no link that it leads nowhere" "$(grep -v "^site: [0-9]* pages in" <<<"$said")"
mkdir -p "$TEST_TMP/mine" && echo kept >"$TEST_TMP/mine/file"
check "a folder that is no site is not replaced" "$(scripts/site.sh "$TEST_TMP/mine" 2>"$TEST_TMP/refused" && echo "it was"
    grep -q 'is no site' "$TEST_TMP/refused" && [ -s "$TEST_TMP/mine/file" ] || cat "$TEST_TMP/refused")"
cd "$site" || exit 1
mapfile -t pages < <(find . -name '*.html' | sort)
check "it has pages" "$([ ${#pages[@]} -ge 30 ] || echo "${#pages[@]}")"

lost() { # page
    local link file anchor
    grep -o -E '(href|src)="[^"]*"' "$1" | sed -E 's/^[a-z]+="(.*)"$/\1/' | grep -v -E '^(https?|mailto|data):' | sort -u |
        while IFS= read -r link; do
            file=${link%%#*} anchor=
            [[ $link == *#* ]] && anchor=${link#*#}
            [ -n "$file" ] && file=$(dirname "$1")/$file || file=$1
            [ -f "$file" ] || { echo "$1: $link"; continue; }
            [ -z "$anchor" ] || [[ $file != *.html ]] || grep -q "id=\"$anchor\"" "$file" || echo "$1: $link: no such anchor"
        done
}
check "every link and anchor leads somewhere" "$(for page in "${pages[@]}"; do lost "$page"; done)"
printf '<p><a href="nowhere.html">x</a><a href="#none">y</a>' >planted.html
check "one that leads nowhere would be seen" "$([ "$(lost ./planted.html | wc -l)" = 2 ] || lost ./planted.html)"
rm planted.html
check "pages are valid" "$(xmllint --html --noout "${pages[@]}" 2>&1 | grep 'error' | grep -v -E 'Tag (header|main|section|svg|path|picture|source|details|summary) invalid|ID .* already defined')"

browser() { # arguments
    HOME=$TEST_TMP timeout 120 chromium --headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --hide-scrollbars \
        --virtual-time-budget=3000 "$@" 2>/dev/null
}
sed 's|</body>|<script>box.value = "merge weights"; box.dispatchEvent(new Event("input"));</script></body>|' docs/index.html >docs/searched.html
dom=$(browser --dump-dom "file://$PWD/docs/searched.html")
check "the search finds a page" "$(grep -q '<div id="found"><p><a href="../docs/[^"]*merge' <<<"$dom" || head -c 2000 <<<"$dom")"
rm docs/searched.html
for mode in light dark; do
    dark=()
    [ $mode = light ] || dark=(--force-dark-mode --blink-settings=preferredColorScheme=0)
    browser "${dark[@]}" --window-size=1100,1500 --screenshot="$PWD/shot-$mode.png" "file://$PWD/docs/ckpt-merge.html"
    check "Chromium shows it, $mode" "$([ -s shot-$mode.png ] || echo "no picture")"
done
check "dark and light differ" "$(cmp -s shot-light.png shot-dark.png && echo "the same")"
echo "1..$n"
exit $bad
