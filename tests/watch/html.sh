#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# log.html: the report of a killed and resumed run in headless Chromium: what it holds once it is a page, and that it has
# colours for dark devices and fits a phone. Prints TAP.
# run: timeout=600
set -u
cd "$TEST_TMP" || exit 1
command -v chromium >/dev/null || {
    echo "1..0 # SKIP no chromium: make check-watch installs it"
    exit 0
}
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/train.sh"

browse() { # width, height, arguments: opens report.html
    HOME=$(mktemp -d -p "$TEST_TMP") timeout 120 chromium --headless=new --no-sandbox --disable-gpu \
        --disable-dev-shm-usage --hide-scrollbars --virtual-time-budget=2000 --window-size="$1,$2" "${@:3}" \
        "file://$PWD/report.html" 2>browser.log
}
dark=(--force-dark-mode --blink-settings=preferredColorScheme=0)

make_input
cat >run.yaml <<END
model: {path: model, init: random, seed: 1}
data: {path: text, eval_path: text, eval_rows: 8, seq_len: 32}
train: {steps: 1000000, global_batch_size: 12, seed: 2, eval_interval: 20}
fsdp: {timeout: 60}
checkpoint: {path: 'ck<&>', interval: 0, keep: 2, fsync: false}
log: {metrics: metrics.jsonl, html: report.html, interval: 20}
END
"$launch" -n 4 run.yaml train.steps=20 >log 2>err
"$launch" -n 4 run.yaml >run.log 2>&1 &
pid=$!
wait_for metrics.jsonl '"step": 25,'
kill -KILL "$(rank_pid 2)"
wait $pid
last=$(tail -n 1 metrics.jsonl | sed 's/.*"step": \([0-9]*\).*/\1/')
"$launch" -n 2 run.yaml train.steps=$((last + 15)) checkpoint.resume=must >log 2>err
ok $? "a run is killed and resumed"

browse 1200 1600 --dump-dom >dom.html
ok "$([ $? = 0 ] && [ -s dom.html ]; echo $?)" "Chromium opens its report"
ok "$(holds dom.html "killed at step $last" && [ "$(grep -o '<svg' dom.html | wc -l)" = 2 ] &&
    [ "$(grep -o '<path' dom.html | wc -l)" -gt 20 ]; echo $?)" "its curves are drawn, wide and narrow"
ok "$(grep -q 'ck&lt;&amp;&gt;/step-' dom.html; echo $?)" "a path with markup in it is text"
for part in Curves 'Starts and faults' Checkpoints Mesh 'Memory of a rank' Environment Configuration; do
    ok "$(grep -q -F "<h2>$part" dom.html; echo $?)" "it has a part '$part'"
done
ok "$(holds dom.html 'finished</span>'; echo $?)" "and says that the run finished"

browse 1200 2400 --screenshot="$PWD/light.png" >shot.log && browse 1200 2400 "${dark[@]}" --screenshot="$PWD/dark.png" >shot.log &&
    browse 390 3000 --screenshot="$PWD/phone.png" >shot.log
ok "$([ -s light.png ] && [ -s dark.png ] && [ -s phone.png ] && ! cmp -s light.png dark.png; echo $?)" \
    "pictures, light, dark and of a phone"
# What the page measures of itself, by a script that is added to a copy.
cp report.html whole.html
measure() { # width, JavaScript, arguments of the browser: its value
    { cat whole.html; echo "<script>document.title='M='+($2)</script>"; } >report.html
    browse "$1" 1600 "${@:3}" --dump-dom | grep -o '<title>M=[^<]*' | sed 's/<title>M=//'
}
paper="getComputedStyle(document.body).backgroundColor"
ok "$([ "$(measure 1200 "$paper")" = 'rgb(255, 255, 255)' ] && [ "$(measure 1200 "$paper" "${dark[@]}")" = 'rgb(13, 17, 23)' ]; echo $?)" \
    "white paper on a light device, dark on a dark one"
wide=$(measure 1200 "document.documentElement.scrollWidth<=innerWidth&&document.querySelector('.narrow').offsetHeight==0")
phone=$(measure 500 "document.documentElement.scrollWidth<=innerWidth&&document.querySelector('.wide').offsetHeight==0")
ok "$([ "$wide" = true ] && [ "$phone" = true ]; echo $?)" "nothing is wider than the window, and a phone gets the narrow curves"
ok "$([ "$(measure 1200 "performance.getEntriesByType('resource').length")" = 0 ]; echo $?)" "the page asks for nothing else"
echo "1..$n"
exit $bad
