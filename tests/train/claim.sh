#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# One run at a time in a folder of checkpoints: a second is refused, whatever machine the first is on;
# what a killed one left behind stops nobody; a run that was succeeded neither saves nor removes.
set -u
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/train.sh"
published() { find "$1" -maxdepth 1 -name 'step-*' ! -name '*.*' -printf '%f\n' | sort; }
# The note of a run on another machine: folder, its number, Slurm's job, seconds between its beats.
note() {
    cat >"$1/running.new" <<END
{"host": "elsewhere", "process": 7, "since": "2026-01-01 00:00:00", "job": "$3", "restart": 0,
 "place": "another kernel", "begun": 1, "beat_seconds": ${4:-1}, "beats": $2}
END
    mv "$1/running.new" "$1/running.json"
}

make_input
cat >run.yaml <<END
model: {path: model, init: random, seed: 1}
data: {path: text, seq_len: 32}
train: {steps: 100000, global_batch_size: 4, seed: 2}
fsdp: {timeout: 60}
checkpoint: {path: ck, interval: 5, keep: 2, fsync: false}
END

# ---- on one machine ---------------------------------------------------------------------------------

"$launch" -n 2 run.yaml log.metrics=a.jsonl >log.a 2>err.a &
pid=$!
wait_for a.jsonl '"step": 6'
ok "$(holds ck/running.json "$(uname -n)"; echo $?)" "a run says that it is in its folder"
run -n 2 run.yaml
ok "$([ $? = 1 ] && holds err "run.yaml:5: checkpoint.path: process" &&
    holds err "on $(uname -n) trains into ck since"; echo $?)" "a second is refused, and told by whom"
step=$(wc -l <a.jsonl)
wait_for a.jsonl "\"step\": $((step + 12)),"
ok "$(kill -0 $pid && [ "$(published ck | wc -l)" -ge 2 ]; echo $?)" "the first trains on, and keeps its checkpoints"
kill -TERM $pid
wait $pid
ok "$([ $? = 75 ] && [ ! -e ck/running.json ]; echo $?)" "and takes its note away when it ends"

setsid "$launch" -n 2 run.yaml log.metrics=b.jsonl >log 2>err &
wait_for b.jsonl '"step":'
leader=$(sed -n 's/.*"process": \([0-9]*\).*/\1/p' ck/running.json)
kill -KILL -- -"$(ps -o pgid= -p "$leader" | tr -d ' ')" $! 2>/dev/null
wait
while kill -0 "$leader" 2>/dev/null; do sleep 0.1; done
ok "$([ -e ck/running.json ]; echo $?)" "a killed one leaves its note"
last=$(published ck | tail -n 1)
steps=$((10#${last#step-} + 3))
run -n 2 run.yaml train.steps=$steps
ok "$([ $? = 0 ] && holds log "resumes from ck/$last" && ! holds log "waiting up to"; echo $?)" \
    "which holds up nobody on that machine"

# shellcheck disable=SC2016
sh -c '"$0" run.yaml log.metrics=c.jsonl & exec sleep 1000' "$launch" >log 2>err &
holder=$!
wait_for c.jsonl '"step":'
leader=$(sed -n 's/.*"process": \([0-9]*\).*/\1/p' ck/running.json)
kill -KILL "$leader"
wait_for "/proc/$leader/stat" ') Z'
last=$(published ck | tail -n 1)
steps=$((10#${last#step-} + 3))
run -n 2 run.yaml train.steps=$steps
ok "$([ $? = 0 ] && holds log "resumes from ck/$last"; echo $?)" "nor does one that ended and stays a zombie"
kill $holder
wait

# ---- on another machine -----------------------------------------------------------------------------

(for i in $(seq 2000); do
    [ -e quiet ] && exit
    note ck "$i" "" 20
    sleep 0.2
done) &
wait_for ck/running.json elsewhere
run -n 2 run.yaml train.steps=$((steps + 2))
ok "$([ $? = 1 ] && holds err "process 7 on elsewhere trains into ck since 2026"; echo $?)" \
    "a run on another machine is seen to live"
touch quiet
wait
note ck 1 ""
run -n 2 run.yaml train.steps=$((steps + 2))
ok "$([ $? = 0 ] && holds log "ck/running.json is of process 7 on elsewhere: waiting up to 4 s" &&
    [ ! -e ck/running.json ]; echo $?)" "and one whose note stands still, to be dead"
note ck 1 17
SLURM_JOB_ID=17 SLURM_RESTART_COUNT=1 run -n 2 run.yaml train.steps=$((steps + 4))
ok "$([ $? = 0 ] && ! holds log "waiting up to"; echo $?)" "Slurm starts a job again when its first start is over"
echo "not a note" >ck/running.json
run -n 2 run.yaml train.steps=$((steps + 6))
ok $? "what is no note holds up nobody"

# ---- succeeded while it could not write -----------------------------------------------------------------

"$launch" -n 2 run.yaml checkpoint.path=lost log.metrics=lost.jsonl >log 2>err &
pid=$!
wait_for lost.jsonl '"step": 6'
while kill -0 $pid 2>/dev/null; do # a beat may just be overwriting it
    note lost 1 ""
    sleep 0.5
done
wait $pid
ok "$([ $? = 1 ] && holds err "checkpoint.path: process 7 on elsewhere has taken lost since 2026"; echo $?)" \
    "a run that was succeeded ends and says by whom"
ok "$(holds lost/running.json elsewhere; echo $?)" "the note stays its successor's"

echo "1..$n"
exit $bad
