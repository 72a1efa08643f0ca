#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# log.prometheus: node exporter reads the file of a run, Prometheus scrapes it, and every query of the Grafana dashboard
# returns data. Prints TAP.
# run: timeout=600
set -u
for program in prometheus prometheus-node-exporter promtool curl jq; do
    command -v $program >/dev/null || {
        echo "1..0 # SKIP no $program: make check-watch installs it"
        exit 0
    }
done
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/train.sh"
pids=
trap 'kill $pids 2>/dev/null; wait' EXIT

port_of() { # log: the port that a program says it listens on
    local port
    for _ in $(seq 300); do
        port=$(sed -n -E 's/.*msg="Listening on".* address=[^ ]*:([0-9]+).*/\1/p' "$1" 2>/dev/null | head -n 1)
        [ -n "$port" ] && echo "$port" && return
        sleep 0.1
    done
    return 1
}
mkdir textfile
prometheus-node-exporter --web.listen-address=127.0.0.1:0 --collector.disable-defaults \
    --collector.textfile --collector.textfile.directory="$PWD/textfile" >exporter.log 2>&1 &
pids=$!
exporter=$(port_of exporter.log)
ok $? "node exporter listens"
cat >prometheus.yml <<END
global: {scrape_interval: 1s, scrape_timeout: 1s}
scrape_configs: [{job_name: node, static_configs: [{targets: ['127.0.0.1:$exporter']}]}]
END
prometheus --config.file=prometheus.yml --storage.tsdb.path="$PWD/data" --web.listen-address=127.0.0.1:0 \
    >prometheus.log 2>&1 &
pids+=" $!"
prometheus=$(port_of prometheus.log)
ok $? "Prometheus listens"

query() { # PromQL: the answer
    curl -sf --get --data-urlencode "query=$1" "http://127.0.0.1:$prometheus/api/v1/query" >answer.json
}
returns() { # PromQL, jq condition on the results: within a minute
    for _ in $(seq 300); do
        query "$1" && jq -e "[.data.result[] | (.value[1] | tonumber)] | $2" answer.json >/dev/null && return 0
        sleep 0.2
    done
    sed 's/^/# /' answer.json
    return 1
}

# ---- a run ----
make_input
cat >run.yaml <<END
model: {path: model, init: random}
data: {sources: [{path: text, weight: 3}, {path: text, weight: 1}], eval_path: text, seq_len: 32}
train: {steps: 1000000, global_batch_size: 8, eval_interval: 400, peak_tflops: 1}
checkpoint: {path: ck, interval: 200, keep: 2}
log: {prometheus: textfile/my.prom, progress: plain, interval: 1000}
END
SLURM_JOB_NAME='a "job"\' USER=somebody "$launch" -n 2 run.yaml >log 2>err &
job=$!
pids+=" $job"
returns fsdp_step 'length == 1 and .[0] > 400'
ok $? "the step is scraped"
query fsdp_step
ok "$([ "$(jq -r '.data.result[0].metric | .job_name, .user' answer.json)" = $'a "job"\\\nsomebody' ]; echo $?)" \
    "with the names of job and user, whatever is in them"
returns fsdp_loss 'length == 1 and .[0] > 0 and .[0] < 10'
ok $? "so is the loss"
returns fsdp_running '. == [1]'
ok $? "the run runs"

# ---- the dashboard ----
jq -r '.panels[] | .targets[].expr' "$TOP/examples/grafana.json" >queries
ok "$([ "$(wc -l <queries)" -gt 20 ]; echo $?)" "the dashboard has $(wc -l <queries) queries"
while read -r expr; do
    expr=${expr//'$job'/.*}
    expr=${expr//'$__rate_interval'/20s}
    returns "$expr" 'length >= 1 and all(isnormal or . == 0)'
    ok $? "$expr returns data"
done <queries
curl -sf --get --data-urlencode 'match[]=fsdp_running' "http://127.0.0.1:$prometheus/api/v1/label/job_name/values" |
    jq -e '.data == ["a \"job\"\\"]' >/dev/null
ok $? "its variable lists the jobs"
ok "$(jq -e '[.panels[].gridPos | .x + .w <= 24] | all' "$TOP/examples/grafana.json" >/dev/null; echo $?)" "panels fit the grid"
ok "$(comm -23 <(grep -o -h 'fsdp_[a-z_]*' queries | sort -u) <("$launch" --print-metrics | grep -o 'fsdp_[a-z_]*' | sort -u) |
    grep -q .; echo $((!$?)))" "it names no metric that is not reported"

# ---- the file ----
promtool check metrics <textfile/my.prom >lint 2>&1
ok $? "promtool finds nothing"
[ -s lint ] && sed 's/^/# /' lint
names=$(grep -o '^fsdp_[a-z_]*' textfile/my.prom | sort -u)
ok "$([ "$(wc -l <<<"$names")" -gt 25 ]; echo $?)" "$(wc -l <<<"$names") metrics are reported"
for what in HELP TYPE; do
    ok "$(diff <(echo "$names") <(sed -n "s/^# $what \([a-z_]*\) .*/\1/p" textfile/my.prom | sort -u) >/dev/null; echo $?)" \
        "each has its $what"
done
returns node_textfile_scrape_error '. == [0]'
ok $? "node exporter read each file whole"
ok "$(ls textfile | grep -q -v '^my.prom\(.tmp\)\?$'; echo $((!$?)))" "nothing else lies there"

# ---- its end ----
kill -TERM $job
wait $job
ok "$([ $? = 75 ]; echo $?)" "the run stops when asked to"
returns fsdp_running '. == [0]'
ok $? "and says that it has"
returns 'fsdp_step - fsdp_saved_step' '. == [0]'
ok $? "with a checkpoint of its last step"
ok "$([ "$(ls textfile)" = my.prom ]; echo $?)" "its file stays, and nothing next to it"
echo "1..$n"
exit $bad
