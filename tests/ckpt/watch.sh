#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# ckpt-merge --watch: a run of two ranks that saves every step is published while it trains, to a folder, by a watcher
# that is killed, by two at once, from a run that removes its checkpoints. WATCH_OUT (a folder or an address below which
# to publish) and WATCH_RUN (to save) choose other places: tests/s3/watch.sh.
# run: timeout=600
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/train.sh"
make_input
at=${WATCH_OUT:-$PWD} from=${WATCH_RUN:-$PWD}
cat >run.yaml <<'END'
model: {path: model, init: random, seed: 1}
data: {path: text, seq_len: 32}
train: {steps: 6, global_batch_size: 6, seed: 2}
optim: {lr: 3.0e-3, schedule: constant}
checkpoint: {path: ck, interval: 1, keep: 0}
log: {metrics: ''}
END
watcher() { "$BIN/ckpt-merge" --watch "$1" -o "$2" --poll 0.1 --end-after "${END:-4}" "${@:3}"; }
get() { "$BIN/ckpt-cp" -q "$1" "$2" >>log 2>&1; }
note() { # output, name: its text
    case $1 in
    s3://*) "$S3_PYTHON" -m awscli --endpoint-url "$AWS_ENDPOINT_URL" s3 cp "$1/$2" - 2>>err ;;
    *) cat "$1/$2" ;;
    esac
}
# Is every step of the run, from FIRST to LAST, there with the same weights? And nothing but that?
published() { # run, output, first, last
    local step
    for step in $(seq -f %08g "$3" "$4"); do
        "$BIN/ckpt-diff" --model "$1/step-$step" "$2/step-$step" >>log 2>&1 || { echo "# $2/step-$step" >>err; return 1; }
        note "$2" step-$step.published >note && grep -q '"step"' note || return 1
    done
    [ "$(note "$2" latest)" = "step-$(printf %08d "$4")" ]
}
then='echo "$CKPT_STEP $CKPT_SOURCE $CKPT_OUTPUT" >>'

# ---- a run from its beginning to its end ---------------------------------------------------------

watcher "$from/ck" "$at/out" --then "$then calls" >watch.log 2>watch.err &
pid=$!
run -n 2 run.yaml checkpoint.path="$from/ck"
ok $? "two ranks train six steps and save each"
wait $pid
ok $? "the watcher ends with the run: $(tail -n 1 watch.err)"
published "$from/ck" "$at/out" 1 6
ok $? "every step is published, and is the run's"
ok "$([ "$(cut -d' ' -f1 calls | sort -n | tr '\n' ' ')" = '1 2 3 4 5 6 ' ] && grep -q "^3 $from/ck/step-00000003 $at/out/step-00000003$" calls; echo $?)" \
    "a command was called for each, once"
END=0 watcher "$from/ck" "$at/out" --then "$then calls" >watch.log 2>watch.err
ok "$([ $? = 0 ] && [ ! -s watch.log ] && [ "$(wc -l <calls)" = 6 ]; echo $?)" "another watcher finds all done"

# ---- killed and begun again ----------------------------------------------------------------------

for nth in 30 150 400; do
    END=0 CKPT_FAULT=kill:$nth watcher "$from/ck" "$at/killed" --mem 1M --threads 1 >watch.log 2>watch.err
done 2>noise
END=0 watcher "$from/ck" "$at/killed" --mem 1M --threads 1 >watch.log 2>watch.err
ok $? "killed three times, the fourth watcher completes: $(tail -n 1 watch.err)"
published "$from/ck" "$at/killed" 1 6
ok $? "what is missing"

# ---- two at once ---------------------------------------------------------------------------------

pids=
for i in 1 2; do
    END=0 watcher "$from/ck" "$at/two" --then "$then two$i" >watch$i.log 2>watch$i.err &
    pids+=" $!"
done
wait ${pids% *} && wait ${pids##* }
ok $? "two watchers of one output: $(cat watch1.err watch2.err | tail -n 1)"
published "$from/ck" "$at/two" 1 6
ok $? "publish each step"
ok "$([ "$(cat two1 two2 2>noise | cut -d' ' -f1 | sort -un | tr '\n' ' ')" = '1 2 3 4 5 6 ' ]; echo $?)" "the command is called for each"

# ---- a run that removes its checkpoints, is stopped, and resumes ----------------------------------

END=${WATCH_END:-1000} watcher "$from/keep" "$at/weights" --then "$then kept" >watch.log 2>watch.err &
pid=$!
"$launch" -n 2 run.yaml checkpoint.path="$from/keep" checkpoint.keep=${WATCH_KEEP:-1} train.steps=1000000 >log 2>err &
job=$!
wait_for kept '^[1-9]'
kill -TERM $job
wait $job
ok "$([ $? = 75 ]; echo $?)" "a run that keeps its last checkpoints alone is stopped"
last=$("$BIN/ckpt-info" --json "$from/keep" | sed -n 's/^ "step": \([0-9]*\).*/\1/p')
kill -0 $pid
ok $? "the watcher waits for it to be started again"
run -n 2 run.yaml checkpoint.path="$from/keep" checkpoint.keep=${WATCH_KEEP:-1} train.steps=$((last + 3))
ok $? "which it is"
wait $pid
ok $? "the watcher ends with it: $(tail -n 1 watch.err)"
last=$(printf %08d $((last + 3)))
ok "$([ "$(note "$at/weights" latest)" = step-$last ] && "$BIN/ckpt-diff" --model "$from/keep" "$at/weights/step-$last" >log 2>err; echo $?)" \
    "the last checkpoint, of step $((10#$last)), is published"
wrong=
for step in $(cut -d' ' -f1 kept); do
    name=step-$(printf %08d "$step")
    if [ "$step" -le 6 ]; then
        "$BIN/ckpt-diff" --model "$from/ck/$name" "$at/weights/$name" >log 2>err
    else
        "$BIN/ckpt-verify" "$at/weights/$name" >log 2>err
    fi || wrong+=" $step"
done
ok "$([ -s kept ] && [ -z "$wrong" ]; echo $?)" "what was published of $((10#$last)) steps, $(wc -l <kept), is whole (not:$wrong)"

# ---- signals, and commands that fail -------------------------------------------------------------

"$BIN/ckpt-merge" --watch "$from/none" -o "$at/none" >watch.log 2>watch.err &
pid=$!
sleep 0.5
kill -TERM $pid
wait $pid
ok $? "SIGTERM ends one that waits for a run"
"$BIN/ckpt-merge" --watch "$from/ck/" -o "$at/term/" --then 'touch begun; exec sleep 60' >watch.log 2>watch.err &
pid=$!
until [ -e begun ] || ! kill -0 $pid; do sleep 0.1; done
kill -TERM $pid
wait $pid 2>noise
ok "$([ $? = 143 ]; echo $?)" "SIGTERM ends one whose command runs, and the command"
END=0 watcher "$from/ck" "$at/term" >watch.log 2>watch.err
published "$from/ck" "$at/term" 1 6
ok $? "another one publishes the rest"
cat >flaky.sh <<'END'
[ -e tried-$CKPT_STEP ] || { touch tried-$CKPT_STEP; exit 3; }
END
END=0 watcher "$from/ck" "$at/flaky" --then 'sh flaky.sh' >watch.log 2>watch.err
ok "$([ $? = 0 ] && grep -q "'sh flaky.sh' ended with status 3" watch.err && [ -e tried-6 ]; echo $?)" "a command that fails is called again"
published "$from/ck" "$at/flaky" 1 6
ok $? "and all is published"
END=0 watcher "$from/ck" "$at/never" --then false >watch.log 2>watch.err
ok "$([ $? = 1 ] && grep -q 'not all checkpoints' watch.err; echo $?)" "one that always fails ends the watch, with an error"
if [[ $from != s3://* ]]; then
    cp -r "$from/ck" lost-ck
    cat >lost.sh <<'END'
[ $CKPT_STEP != 3 ] || { rm -rf "$CKPT_SOURCE"; exit 3; }
END
    END=0 watcher lost-ck "$at/lost" --then 'sh lost.sh' >watch.log 2>watch.err
    ok "$([ $? = 1 ] && tail -n 1 watch.err | grep -q 'step 3: the weights are in .* but --then failed' && ! grep -q '"step": 3' "$at"/lost/*.published; echo $?)" \
        "one whose command failed and whose checkpoint was then removed: $(tail -n 1 watch.err)"
    ok "$([ -e "$at/lost/step-00000003" ] && [ "$(ls "$at"/lost/*.published | wc -l)" = 5 ]; echo $?)" "its weights are there, and the others are published"
fi
cat >server.py <<'END'
import http.server, json
class Handler(http.server.BaseHTTPRequestHandler):
    fails = True  # the first
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status = 503 if Handler.fails else 204
        Handler.fails = False
        print(status, self.path, self.headers["Content-Type"], body["step"], body["source"], body["output"], flush=True)
        self.send_response(status)
        self.end_headers()
    def log_message(self, *args):
        pass
server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
print("http://user:secret@127.0.0.1:%d/new?key=secret" % server.server_port, flush=True)
server.serve_forever()
END
if "$BIN/ckpt-merge" --version | grep -q '+curl'; then
    "${PYTHON:-python3}" server.py >posts 2>noise &
    server=$!
    until [ -s posts ]; do sleep 0.1; done
    END=0 watcher "$from/ck" "$at/post" --then "$(head -n 1 posts)" >watch.log 2>watch.err
    ok "$([ $? = 0 ] && [ "$(sed -n 's,^204 /new?key=secret application/json ,,p' posts | sort)" = "$(for i in {1..6}; do
        echo "$i $from/ck/step-0000000$i $at/post/step-0000000$i"
    done)" ]; echo $?)" "an address gets each by POST: $(sed -n 3p posts)"
    grep -q "http://127.0.0.1:[0-9]* answers POST with status 503" watch.err && ! grep -q secret watch.err
    ok $? "one that fails is told again, and what may be a secret is not printed: $(head -n 1 watch.err)"
    kill $server
    wait $server 2>noise
    END=0 watcher "$from/ck" "$at/gone" --then http://127.0.0.1:9/new >watch.log 2>watch.err
    ok "$([ $? = 1 ] && grep -q 'http://127.0.0.1:9' watch.err; echo $?)" "nobody there: $(head -n 1 watch.err)"
else
    END=0 watcher "$from/ck" "$at/post" --then http://127.0.0.1:9/new >watch.log 2>watch.err
    ok "$([ $? = 1 ] && grep -q 'made without libcurl' watch.err; echo $?)" "no addresses in this build: $(head -n 1 watch.err)"
fi
if [[ $at != s3://* ]]; then
    mkdir -p "$at/stuck/latest"
    END=0 timeout 60 "$BIN/ckpt-merge" --watch "$from/ck" -o "$at/stuck" --poll 0.1 --end-after 0 >watch.log 2>watch.err
    ok "$([ $? = 1 ] && grep -q latest watch.err; echo $?)" "a folder in the place of \`latest\`: $(tail -n 1 watch.err)"
    timeout 60 "$BIN/ckpt-merge" --watch /dev/null -o "$at/null" --poll 0.1 --end-after 0 >watch.log 2>watch.err
    ok "$([ $? = 1 ] && grep -q /dev/null watch.err; echo $?)" "no folder of checkpoints: $(tail -n 1 watch.err)"
    timeout 60 "$BIN/ckpt-merge" --watch "$from/typo" -o "$at/typo" --poll 0.1 --end-after 0 >watch.log 2>watch.err
    ok "$([ $? = 1 ] && grep -q "typo' is no folder of checkpoints" watch.err; echo $?)" "nor one: $(tail -n 1 watch.err)"
fi
END=0 watcher "$from/ck" "$at/bad" --map no-such-map >watch.log 2>watch.err
ok "$([ $? = 1 ] && grep -q no-such-map watch.err; echo $?)" "a wrong option ends it: $(tail -n 1 watch.err)"
for args in '--average' '--overwrite' '--dry-run'; do
    watcher "$from/ck" "$at/refused" $args >log 2>err
    ok "$([ $? = 2 ]; echo $?)" "$args is refused"
done
"$BIN/ckpt-merge" --watch "$from/ck" -o x.safetensors >log 2>err
ok "$([ $? = 2 ]; echo $?)" "so is a single file"
echo "1..$n"
exit $bad
