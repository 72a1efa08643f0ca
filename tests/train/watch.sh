#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What a run says of itself while it runs: times that add up, starts that are counted, lines that a resume cuts off, files
# for TensorBoard and Prometheus, and what becomes of a run that cannot write them. Their own readers: tests/watch.
# Prints TAP.
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/train.sh"
make_input
cat >run.yaml <<END
model: {path: model, init: random}
data: {path: text, eval_path: text, seq_len: 32}
train: {steps: 8, global_batch_size: 8, eval_interval: 3}
checkpoint: {path: ck, interval: 4}
log: {metrics: m.jsonl, trace: t.json}
END

# ---- times ----
run -n 2 run.yaml
ok $? "a run"
awk 'function value(key) { return match($0, "\"" key "\": [0-9.e-]+") ? substr($0, RSTART + length(key) + 4, RLENGTH - length(key) - 4) + 0 : 0 }
    { wall = value("wall"); off = wall - last - value("step_s") - value("save_s") - value("eval_s") - value("idle_s") }
    NR > 1 && off * off > 0.002 * 0.002 { print "# step " NR ": " off; bad = 1 }
    value("data_s") + value("exposed_comm_s") > value("step_s") + 1e-6 { bad = 1 }
    { last = wall } END { exit bad || NR != 8 }' m.jsonl
ok $? "the wall clock is the sum of steps, saves, evaluations and the rest"
has() { [ "$(grep -c "\"$1\": " m.jsonl)" "$2" "$3" ]; } # key, comparison, lines
ok "$(has data_s = 8 && has exposed_comm_s = 8 && has memory_bytes = 8; echo $?)" "each step waits for rows, communicates and has memory"
ok "$(sed -n 4p m.jsonl | grep -q '"eval_s"' && sed -n 5p m.jsonl | grep -q '"save_s"' && ! sed -n 3p m.jsonl | grep -q '_s": 0,'; echo $?)" \
    "an evaluation and a save are in the step after them"
ok "$(head -n 1 m.jsonl | grep -q '"idle_s"'; echo $?)" "the first has the start of the run"

# ---- starts ----
attempts() { sed -E 's/.*"step": ([0-9]+),.*"attempt": ([0-9]+), "ranks": ([0-9]+).*/\1:\2:\3/' "$1" | tr '\n' ' '; }
rm -rf ck m.jsonl
run -n 2 run.yaml train.steps=4 && cp -r ck first && run -n 2 run.yaml train.steps=6 && rm -rf ck && cp -r first ck && run run.yaml
ok $? "a run is stopped, and resumed twice from its step 4"
ok "$([ "$(attempts m.jsonl)" = "1:1:2 2:1:2 3:1:2 4:1:2 5:3:1 6:3:1 7:3:1 8:3:1 " ]; echo $?)" "each step is there once: $(attempts m.jsonl)"
ok "$([ "$(attempts m.jsonl.redone)" = "5:2:2 6:2:2 " ]; echo $?)" "what ran twice is next to it: $(attempts m.jsonl.redone)"

# ---- files for others ----
run run.yaml log.prometheus=here/x.txt
ok "$([ $? = 2 ] && holds err "try here/x.txt.prom"; echo $?)" "a name that node exporter passes over: $(cat err)"
run run.yaml log.prometheus=none/x.prom train.steps=9
ok "$([ $? != 0 ] && holds err 'none/x.prom' && [ ! -e ck/step-00000009 ]; echo $?)" "a folder that is not there: $(tail -n 1 err)"
run run.yaml log.prometheus=s3://a/x.prom
ok "$([ $? = 2 ] && holds err log.prometheus; echo $?)" "a store is no folder: $(cat err)"
run run.yaml log.tensorboard=text/events train.steps=9
ok "$([ $? != 0 ] && holds err 'text/events'; echo $?)" "a folder that cannot be made: $(tail -n 1 err)"
run run.yaml log.tensorboard_histograms=2 train.steps=9
ok "$(holds err 'log.tensorboard_histograms has no effect while log.tensorboard is empty'; echo $?)" "histograms for nobody"
rm -rf ck
mkdir here
run -n 2 run.yaml log.prometheus=here/run.prom log.tensorboard=a/b/events log.tensorboard_histograms=3
ok $? "a run writes for both"
values() { sed -n -E "s/^$1\{job_name=\"run\",[^}]*\} //p" here/run.prom; }
ok "$([ "$(values fsdp_step) $(values fsdp_saved_step) $(values fsdp_running) $(values fsdp_ranks)" = "8 8 0 2" ]; echo $?)" \
    "the last step, the last checkpoint, its end"
ok "$([ "$(grep -c '^# HELP' here/run.prom)" = "$(grep -c '^fsdp_' here/run.prom)" ] && [ "$(ls here)" = run.prom ]; echo $?)" \
    "each value has its line of help"
ok "$([ "$(ls a/b/events | wc -l)" = 1 ]; echo $?)" "one file of events"
run run.yaml log.tensorboard=a/b/events train.steps=9 && run run.yaml log.tensorboard=a/b/events train.steps=10
ok "$([ "$(ls a/b/events | wc -l)" = 3 ]; echo $?)" "and one for each start"

# ---- a disk that is full ----
if [ -w /dev/full ]; then
    run -n 2 run.yaml log.metrics=/dev/full train.steps=12
    ok $? "a run whose metrics cannot be written continues"
    ok "$([ "$(grep -c 'no more is written to log.metrics' err)" = 1 ]; echo $?)" "and says so once: $(grep metrics err)"
fi
echo "1..$n"
exit $bad
