#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# fsdp-top on real runs: two at a time, done, stopped, failed, killed, hung, without a place for a status;
# what the checkpoint tools make of the status next to their checkpoints.
# run: long
set -u
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/train.sh"
top=$BIN/fsdp-top
make_input
mkdir runs
cat >run.yaml <<END
model: {path: model, init: random, seed: 1}
data: {path: text, seq_len: 32}
train: {steps: 100000, global_batch_size: 4, seed: 2}
optim: {lr: 1.0e-3, schedule: constant}
fsdp: {timeout: 60, hang_timeout: 10}
checkpoint: {path: runs/a, interval: 20000, fsync: false, resume: never}
log: {metrics: runs/a.jsonl, interval: 1000}
END
start() { # name, settings: pid, once it has made a step
    "$launch" -n 2 run.yaml checkpoint.path="runs/$1" log.metrics="runs/$1.jsonl" "${@:2}" >"$1.log" 2>"$1.err" &
    pid=$!
    wait_for "runs/$1.jsonl" '"step": 3,'
}
state() { "$top" --once runs | awk -v job="$1" '$1 == job { print $2 }'; }
shows() { # job, state: until it is so
    for _ in $(seq 600); do
        [ "$(state "$1")" = "$2" ] && return 0
        sleep 0.1
    done
    "$top" --once runs >log
    return 1
}
ends() { # pid
    wait "$1"
    return 0
}

# ---- two runs --------------------------------------------------------------------------------------------

start a
a=$pid
start b
b=$pid
shows a running && shows b running
ok $? "two runs are seen at work"
"$top" --once runs >log
ok "$(head -n 1 log | grep -q '^JOB  STATE  *STEP  *LOSS  *TOK/S  *LEFT  *SAVED  *RANKS  *SEEN$'; echo $?)" "in a table"
ok "$([ "$(awk '{ if (length > w) w = length } END { print w }' log)" -le 80 ]; echo $?)" "of 80 columns"
ok "$(grep -q -E '^a +running +[0-9]+/100000 +[0-9.]+ +[0-9.]+k? +[0-9]+[hm].* +- +2 +[0-9]+s$' log; echo $?)" "with steps, loss, rate, time left, ranks and age"
ok "$(! grep -q $'\e' log; echo $?)" "without colors"
COLUMNS=200 "$top" --once runs >log
ok "$(head -n 1 log | grep -q 'SLOWEST  *HOST  *PROCESS$' && grep -q "^a .* $(uname -n)  *[0-9]*$" log; echo $?)" "200 columns have more"
ok "$([ "$("$top" --once runs/a | awk 'NR == 2 { print $2 }')" = running ]; echo $?)" "a run's own folder can be given"
"$top" --json runs >log
ok "$(grep -q '"name": "a"' log && grep -q '"state": "running"' log && grep -q '"seconds_left": [0-9]' log &&
    grep -q "\"config\": \"$PWD/run.yaml\"" log; echo $?)" "or JSON"

# ---- their ends ------------------------------------------------------------------------------------------

touch runs/a/stop
ends $a
shows a stopped
ok $? "a run that was stopped"
kill -KILL "$(sed -n 's/.*"pid": \([0-9]*\).*/\1/p' runs/b/status.json)"
ends $b
shows b lost
ok $? "one whose rank 0 was killed is lost"
"$top" --once runs >log
ok "$(grep -q '^  process [0-9]* on .* is gone' log; echo $?)" "which is said below it"
ok "$([ "$(awk 'NR > 1 && !/^ / { print $1 }' log | tr '\n' ' ')" = "b a " ]; echo $?)" "and comes first"
"$launch" -n 2 run.yaml train.steps=4 checkpoint.path=runs/c log.metrics= >c.log 2>c.err
shows c done
ok $? "one that has made all its steps"
"$top" --once runs >log
ok "$(grep -q -E '^c +done +4/4 .* [0-9]+s +2 +[0-9]+s$' log; echo $?)" "and when it saved"
start d
rank=$(rank_pid 1)
kill -KILL "$rank"
ends $pid
shows d failed && "$top" --once runs >log && grep -q '^  .*rank 1 on .*' log
ok $? "one that lost a rank has failed, and says which"
start e
rank=$(rank_pid 1)
kill -STOP "$rank"
shows e hung && "$top" --once runs >log && grep -q '^  rank 1 on .*: no sign of life' log
ok $? "one whose rank is stopped is hung, and says which"
ends $pid
ok "$([ "$(state e)" = hung ]; echo $?)" "after its end, too"
start f train.steps=100001
ends_by=$pid
kill -TERM $ends_by
ends $ends_by
"$launch" -n 2 run.yaml train.steps=$(($(sed -n 's/^ "step": \([0-9]*\),/\1/p' runs/f/status.json) + 2)) checkpoint.path=runs/f \
    checkpoint.resume=must log.metrics=runs/f.jsonl >f.log 2>f.err
ok "$([ $? = 0 ] && [ "$(state f)" = "done" ] && grep -q '"attempt": 2' runs/f/status.json; echo $?)" "a resumed run has a status of its own"

# ---- where there is none ---------------------------------------------------------------------------------

"$launch" -n 1 run.yaml train.steps=3 checkpoint.path= log.metrics=runs/alone.jsonl >log 2>err
ok "$([ -e runs/alone.jsonl.status.json ] && [ "$(state alone.jsonl)" = "done" ]; echo $?)" "without checkpoint.path it lies next to the metrics"
mkfifo pipe
cat pipe >piped &
"$launch" -n 1 run.yaml train.steps=3 checkpoint.path= log.metrics=pipe >log 2>err
ok "$([ $? = 0 ] && [ ! -e pipe.status.json ] && [ "$(grep -c step piped)" = 3 ]; echo $?)" "not next to a pipe"
mkdir older && cp runs/a.jsonl older/metrics.jsonl && echo '{"messages": []}' >older/chats.jsonl
touch -d '1 hour ago' older/metrics.jsonl older/chats.jsonl && touch -d '2 hours ago' older/chats.jsonl
"$top" --once older >log
ok "$(grep -q -E '^metrics.jsonl +ended +[0-9]+ +[0-9.]+ ' log; echo $?)" "an older run is known by its metrics"
"$launch" -n 2 run.yaml train.steps=4 checkpoint.path=runs/c checkpoint.resume=must log.metrics= >c.log 2>c.err
"$top" --once runs >log
ok "$(grep -q "nothing to do" c.log && grep -q -E '^c +done +4/4 .* [0-9]+s +2 +[0-9]+s$' log; echo $?)" "a run that had nothing to do shows the save it resumed from"
mkdir -p deep/1/2/3/4/5/6/7/8/9 && cp older/metrics.jsonl deep/1/2/3/4/5/6/7/8/ && cp older/metrics.jsonl deep/1/2/3/4/5/6/7/8/9/
"$top" --once deep >log 2>err
ok "$([ "$(wc -l <log)" = 2 ] && [ "$(cat err)" = "fsdp-top: runs more than 8 levels deep are not shown; give a \
folder: deep/1/2/3/4/5/6/7/8/9" ]; echo $?)" "what is too deep is said"
mkdir many && (cd many && seq 20001 | xargs mkdir) && "$top" --once many >log 2>err
ok "$(grep -q '^fsdp-top: runs in more than 20000 folders are not shown; give a folder: many/[0-9]*$' err; echo $?)" "so are too many folders"
rm -r many
mkdir empty
"$top" --once empty >log 2>err
ok "$([ $? = 0 ] && [ "$(wc -l <log)" = 1 ] && holds err "no runs below empty"; echo $?)" "a folder without runs"
"$top" --once runs nowhere >log 2>err
ok "$([ $? = 1 ] && holds err "fsdp-top: nowhere: No such file or directory"; echo $?)" "a folder that is not there"
odd=$'odd/\xc2\x9b31m\xff'
mkdir -p "$odd" && cp older/metrics.jsonl "$odd"
LC_ALL=C.UTF-8 "$top" --once odd >log && "$top" --json odd >odd.json
ok "$([ $? = 0 ] && ! grep -q $'\xc2\x9b' log && holds odd.json '31m?/metrics.jsonl"'; echo $?)" \
    "the name of a folder commands no terminal, and is in the JSON, UTF-8 or not"
mkdir broken && echo '{"version": 1' >broken/status.json
"$top" --once broken >log 2>err
ok "$([ $? = 0 ] && [ "$(wc -l <log)" = 1 ] && holds err "no runs below broken" &&
    holds err "fsdp-top: 1 file cannot be read: broken/status.json: damaged or incomplete JSON"; echo $?)" "half a status is said"
mkdir broken/a broken/b broken/c && : >broken/a/status.json && cp older/metrics.jsonl broken/b && echo '{"ok": true}' >broken/c/status.json
"$top" --once broken >log 2>err
ok "$([ $? = 0 ] && [ "$(wc -l <log)" = 2 ] && holds err "fsdp-top: 2 files cannot be read; the first: broken/" &&
    [ "$(wc -l <err)" = 1 ]; echo $?)" "an empty one is counted, another program's is not"

# ---- next to checkpoints ---------------------------------------------------------------------------------

cp -r runs/c ck && touch -d '1 day ago' ck/status.json
run -n 2 run.yaml train.steps=12 checkpoint.path=ck checkpoint.interval=2 checkpoint.keep=2 checkpoint.resume=auto log.metrics=
ok "$([ $? = 0 ] && [ "$(ls ck | tr '\n' ' ')" = "status.json step-00000010 step-00000012 " ]; echo $?)" "checkpoint.keep counts checkpoints alone"
"$BIN/ckpt-info" ck >log 2>err
ok "$([ $? = 0 ] && holds log step-00000012 && [ ! -s err ]; echo $?)" "ckpt-info of the folder"
"$BIN/ckpt-verify" ck >log 2>err
ok "$([ $? = 0 ] && [ ! -s err ]; echo $?)" "ckpt-verify"
"$BIN/ckpt-cp" ck copy >log 2>err
ok "$([ $? = 0 ] && [ -e copy/manifest.json ] && [ ! -e copy/status.json ]; echo $?)" "ckpt-cp copies the newest checkpoint, not the status"
cp ck/status.json ck/status.json.tmp.b8d259d9279d7961
touch -d '2 hours ago' ck/status.json.tmp.b8d259d9279d7961 ck/status.json
"$BIN/ckpt-info" --gc ck >log 2>err
ok "$([ $? = 0 ] && [ "$(ls ck | tr '\n' ' ')" = "status.json step-00000010 step-00000012 " ]; echo $?)" "ckpt-info --gc removes a killed writer's file, and not the status"

# ---- a place that cannot be written ---------------------------------------------------------------------

mkdir -p sealed/status.json
run -n 1 run.yaml train.steps=3 checkpoint.path=sealed log.metrics=
ok "$([ $? = 0 ] && [ "$(grep -c 'fsdp-top will not see this run' err)" = 1 ]; echo $?)" "a status that cannot be written is warned of once"

echo "1..$n"
exit $bad
