#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# fsdp-plot and log.html on a real run that is killed and resumed on fewer ranks; what fsdp-plot says of bad input.
set -u
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/train.sh"
echo "leak:libfontconfig" >lsan # the fonts of a PNG stay in that library's cache
export LSAN_OPTIONS=${LSAN_OPTIONS:-}:suppressions=$PWD/lsan:print_suppressions=0
unset NO_COLOR COLUMNS LINES LC_ALL LC_CTYPE
export LANG=C.UTF-8 TZ=UTC
plot() { "$BIN/fsdp-plot" "$@" >log 2>err; }

make_input
cat >run.yaml <<END
model: {path: model, init: random, seed: 1}
data: {path: text, eval_path: text, eval_rows: 8, seq_len: 32}
train: {steps: 1000000, global_batch_size: 12, seed: 2, eval_interval: 20}
fsdp: {timeout: 60}
checkpoint: {path: ck, interval: 0, keep: 2, fsync: false} # saves at the end alone: whenever it is killed, steps are lost
log: {metrics: out/metrics.jsonl, html: out/report.html, interval: 20}
END

# ---- a run that stops after a save, resumes, and is killed ----
"$launch" -n 4 run.yaml train.steps=20 >log 2>err
ok $? "four ranks train 20 steps"
"$launch" -n 4 run.yaml >run.log 2>&1 &
pid=$!
wait_for out/metrics.jsonl '"step": 25,' || echo "# the run did not reach step 25"
plot out
ok "$([ $? = 0 ] && holds log 'loss (nats per token)' && holds log 'tokens per second'; echo $?)" \
    "a run that is running is drawn in the terminal"
ok "$(holds out/report.html '<span class="good">training</span>, step' && holds out/report.html 'ck/step-00000020'; echo $?)" \
    "its report is there, with the checkpoint that it resumed from"
kill -KILL "$(rank_pid 2)"
wait $pid
ok "$([ $? != 0 ]; echo $?)" "a rank is killed, and the run ends"
ok "$(holds out/report.html '<span class="bad">failed</span> after step' || holds out/report.html '>training<'; echo $?)" \
    "its report does not say that it finished"
last=$(tail -n 1 out/metrics.jsonl | sed 's/.*"step": \([0-9]*\).*/\1/')

# ---- and resumed on two ranks ----
"$launch" -n 2 run.yaml train.steps=$((last + 15)) checkpoint.resume=must >log 2>err
ok $? "two ranks resume and finish"
plot out -o loss.svg
ok "$([ $? = 0 ] && [ -s out/metrics.jsonl.redone ]; echo $?)" "fsdp-plot draws an SVG of it"
ok "$(holds loss.svg ">killed at step $last<"; echo $?)" "the kill is marked where it was: step $last"
ok "$(holds loss.svg '>resumed from step 20 on 2 ranks<' && holds loss.svg '>resumed from step 20<'; echo $?)" "and so are both resumes"
ok "$(holds loss.svg '>start 1, 4 ranks<' && holds loss.svg '>start 3, 2 ranks<' && holds loss.svg '>held out<'; echo $?)" \
    "the legend has the starts and the held-out loss"
ok "$(grep -q 'stroke-width="6"' loss.svg; echo $?)" "steps that ran twice are drawn twice"
ok "$(holds out/report.html '<span class="good">finished</span> step' &&
    holds out/report.html "killed</span>; the steps after 20 were lost and done again" &&
    holds out/report.html ">killed at step $last<"; echo $?)" "the report tells of the starts"
ok "$(holds out/report.html 'sharding_strategy: ' && holds out/report.html 'optimizer state' &&
    holds out/report.html "$(hostname)"; echo $?)" "and has configuration, memory and host"
ok "$(! grep -q -E '<script|<link|(src|href)=|url\(' out/report.html; echo $?)" "without scripts, or anything from outside"
ok "$([ -z "$(ls out/*.tmp* 2>/dev/null)" ] && [ -z "$(ls ./*.tmp* 2>/dev/null)" ]; echo $?)" "no unfinished file is left"

# ---- the picture's forms ----
plot out --x wall --log xy --smooth 5 --level 3:goal --title 'a <&> b' --keys loss,lr,step_s -o all.svg
ok "$([ $? = 0 ] && holds all.svg '>a &lt;&amp;&gt; b<' && holds all.svg '>goal<' && holds all.svg '>learning rate<'; echo $?)" \
    "all options at once"
if plot out -o loss.png; then
    ok "$([ "$(head -c 4 loss.png | od -An -c | tr -d ' \n')" = '211PNG' ]; echo $?)" "a PNG is one"
    ok "$(! ldd "$BIN/fsdp-launch" | grep -q cairo; echo $?)" "fsdp-launch is not linked with cairo"
else
    ok "$(holds err 'made without cairo' && holds err 'write an .svg' && [ ! -e loss.png ]; echo $?)" \
        "a build without cairo says so, and what to do"
fi
cp out/metrics.jsonl before && ln -s out/metrics.jsonl link.svg
plot out -o out/metrics.jsonl --format svg || plot out -o link.svg
ok "$([ $? = 1 ] && cmp -s before out/metrics.jsonl && holds err 'metrics that are drawn'; echo $?)" "a picture never takes the place of its metrics"
plot - <out/metrics.jsonl
ok "$([ $? = 0 ] && holds log 'standard input'; echo $?)" "standard input is drawn"
plot <(cat out/metrics.jsonl) -o - && head -c 5 log >head
ok "$([ "$(cat head)" = '<?xml' ]; echo $?)" "a pipe is drawn, to standard output"
mkdir -p sweep && cp -r out sweep/a && cp -r out sweep/b
plot sweep/* -o sweep.svg
ok "$([ $? = 0 ] && holds sweep.svg '>a<' && holds sweep.svg '>b<' && ! holds sweep.svg '>sweep'; echo $?)" \
    "of several runs the labels are what differs"
plot out --width 200 --height 50
ok "$([ "$(wc -l <log)" = 50 ] && ! grep -q $'\e' log; echo $?)" "a chart has the size that was asked for, and no colours in a file"
plot out --color always
ok "$(grep -q $'\e\[38;5;33m\|\e\[34m' log; echo $?)" "unless they are asked for"
LANG=C.ISO-8859-1 plot out
ok "$(! LC_ALL=C grep -q '[^ -~]' log; echo $?)" "a locale without UTF-8 gets ASCII"
head -n 1 out/metrics.jsonl >one.jsonl
plot one.jsonl -o one.svg && plot one.jsonl
ok $? "one point is a picture"

# ---- bad input ----
refused() { # exit status, text of the error, what, fsdp-plot's arguments
    local want=$1 text=$2 what=$3
    shift 3
    plot "$@"
    ok "$([ $? = "$want" ] && holds err "$text" && [ ! -e no.svg ]; echo $?)" "refused: $what"
}
: >empty.jsonl
printf '{"step": 1, "loss": 2' >half.jsonl
printf '{"step": 1, "loss": null}\n' >null.jsonl
printf '{"step": 1, "loss": 3}\nno metrics\n{"step": 2, "loss": 2}\n{"step": 3, "lo' >mixed.jsonl
refused 1 'empty.jsonl: there is no complete line of metrics in it; name the file of log.metrics' "an empty file" empty.jsonl -o no.svg
refused 1 'half.jsonl: there is no complete line of metrics in it' "half a line" half.jsonl -o no.svg
refused 1 "no value for 'loss'" "a loss that is never a number" null.jsonl -o no.svg
refused 1 'missing.jsonl: No such file' "a missing file" missing.jsonl -o no.svg
refused 1 'there is no metrics.jsonl in this folder' "a folder without metrics" model -o no.svg
refused 1 '/dev/zero: a line is longer than 1 MiB, so this is no file of metrics; name the file of log.metrics' \
    "a device without an end" /dev/zero -o no.svg
head -c 3000000 /dev/zero | tr '\0' x >long.jsonl
refused 1 'long.jsonl: a line is longer than 1 MiB' "a line without an end" long.jsonl -o no.svg
refused 1 'the first 10000 lines are no metrics' "a pipe without an end" <(yes x) -o no.svg
refused 1 "no value for 'lss'" "a pipe without the key" <(cat out/metrics.jsonl) --keys lss -o no.svg
refused 1 "no value for 'lss'; it has step, loss, " "a key that is not there" out --keys lss -o no.svg
refused 1 "cannot write 'nowhere/no.svg': No such file" "an output that cannot be written" out -o nowhere/no.svg
refused 2 'neither .svg nor .png' "a format that it does not write" out -o no.pdf
refused 2 "'loss' twice" "a key that is given twice" out --keys loss,loss
refused 2 'give a file of metrics' "no file" -o no.svg
refused 1 'no room' "a picture too small for its panels" out --height 160 -o no.svg
plot mixed.jsonl -o mixed.svg
ok "$([ $? = 0 ] && holds err '1 line is no metrics, left out'; echo $?)" "a line that is no metrics is left out, and counted"
echo old >kept.svg
plot empty.jsonl -o kept.svg
ok "$([ "$(cat kept.svg)" = old ]; echo $?)" "a picture that cannot be drawn leaves the old one"
echo "1..$n"
exit $bad
