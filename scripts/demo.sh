#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Trains a small Llama on real text as two emulated nodes of two ranks, kills a rank, resumes on
# another mesh, merges, generates. Everything it makes lies in build/demo.
#
# DEMO_SECONDS=N: about how long to train (default 240). DEMO_STEPS=N: how many steps.
set -u -o pipefail
cd "$(dirname "$0")/.." || exit 1
export PATH=${BIN:-$PWD/build/bin}:$PATH
export OPENBLAS_NUM_THREADS=1 # a rank is a core's worth of work

demo=build/demo
config=examples/demo.yaml
began=$SECONDS

. scripts/demo_lib.sh

# Process of a rank that fsdp-launch started.
pid_of_rank() { # pid of fsdp-launch, rank
    local pid
    for pid in $(cat "/proc/$1/task/$1/children"); do
        tr '\0' '\n' <"/proc/$pid/environ" | grep -q -x "RANK=$2" && echo "$pid"
    done 2>/dev/null
}

# On a machine that became slow the demo makes fewer steps rather than take longer.
late() { # seconds since the beginning
    [ -z "${DEMO_SECONDS:-}" ] && [ $((SECONDS - began)) -gt "$1" ]
}

launcher=
stop() {
    [ -z "$launcher" ] || kill "$launcher" 2>/dev/null
    wait
    exit 130
}
trap stop INT TERM

# ---- the text -----------------------------------------------------------------------------------

heading "1. Text"
rm -rf $demo
mkdir -p $demo/text
# A line is `Ge1:1 In the beginning...`: book and chapter, verse, text. Every 40th chapter is held out.
bible -f gen1:1-rev22:21 </dev/null | awk -v dir=$demo/text '
    {
        split($1, ref, ":")
        if (ref[1] != chapter) {
            chapter = ref[1]
            out = dir (++nchapters % 40 ? "/train.txt" : "/held-out.txt")
            if (started[out]++) print "" >out
        }
        sub(/^[^ ]+ /, "")
        print >out
    }' || fail "the text could not be made"
train_nbytes=$(stat -c %s $demo/text/train.txt)
held_nbytes=$(stat -c %s $demo/text/held-out.txt)
[ "$train_nbytes" -gt 4000000 ] || fail "the text has only $train_nbytes bytes"
tell "The King James Bible, from Debian's package bible-kjv-text: $train_nbytes bytes to learn from," \
    "and $held_nbytes (every 40th chapter) held out to be tested on. It begins:"
echo
head -n 2 $demo/text/train.txt | fold -s -w 92 | sed 's/^/    /'

# The yardstick: a model that knows only how frequent each byte is (counts + 1), in nats per byte.
bytes() { od -An -v -tu1 -w1 "$1"; }
unigram=$(awk 'NR == FNR { count[$1 + 0]++; n++; next }
    { loss -= log((count[$1 + 0] + 1) / (n + 256)); m++ }
    END { printf "%.4f", loss / m }' <(bytes $demo/text/train.txt) <(bytes $demo/text/held-out.txt))
[ -n "$unigram" ] || fail "no unigram model"

# ---- the model ----------------------------------------------------------------------------------

heading "2. Model"
tell "A Llama on bytes: 5 layers of width 192, grouped-query attention (6 heads, 2 for keys and values)," \
    "random weights. examples/llama-2m is an ordinary Hugging Face folder."

# How many steps fit: this machine's speed is measured, so that the demo takes as long everywhere.
if [ -z "${DEMO_STEPS:-}" ]; then
    fsdp-launch -n 4 --nodes 2 $config train.steps=4 optim.warmup_steps=0 checkpoint.interval=0 \
        train.eval_interval=0 data.eval_rows=1 \
        checkpoint.resume=never checkpoint.path=$demo/speed log.interval=1 \
        >$demo/speed.log 2>&1 || { cat $demo/speed.log; fail "the speed test failed"; }
    speed=$(metric tokens_per_s)
    rm -rf $demo/metrics.jsonl $demo/report.html $demo/speed $demo/speed.log # its checkpoint too
    DEMO_STEPS=$(awk -v s="${DEMO_SECONDS:-240}" -v v="${speed:-0}" 'BEGIN {
        n = int(s * v / (8 * 256) / 10) * 10
        print (n < 120 ? 120 : (n > 1200 ? 1200 : n)) }')
    tell "This machine learns from about $(grouped "${speed%.*}") bytes a second: $DEMO_STEPS steps of 8 x 256."
fi
interval=$((DEMO_STEPS / 10))
kill_at=$((DEMO_STEPS / 2 + interval / 2)) # between two checkpoints
settings=(train.steps="$DEMO_STEPS" train.eval_interval=$(((DEMO_STEPS + 2) / 3)) checkpoint.interval=$interval
    log.interval=$((DEMO_STEPS / 20)))

# ---- training, and a death ----------------------------------------------------------------------

heading "3. Four ranks, two nodes of two; one is killed"
tell "HYBRID_SHARD: parameters, gradients and optimizer state are sharded over the two ranks of a node," \
    "and the nodes, emulated on this machine, hold replicas. At step $kill_at (or before, on a slow machine)," \
    "rank 2 gets SIGKILL."
echo
say fsdp-launch -n 4 --nodes 2 $config "${settings[@]}"
fsdp-launch -n 4 --nodes 2 $config "${settings[@]}" 2>$demo/stderr &
launcher=$!
while kill -0 $launcher 2>/dev/null; do
    step=$(metric step)
    if [ "${step:-0}" -ge $kill_at ] || { late 240 && [ "${step:-0}" -gt $((2 * interval)) ]; }; then
        victim=$(pid_of_rank $launcher 2)
        [ -n "$victim" ] || fail "there is no rank 2 to kill"
        echo
        show kill -KILL "$victim"
        killed=$SECONDS
        break
    fi
    sleep 0.2
done
wait $launcher
rc=$?
launcher=
cat $demo/stderr
[ -n "${killed:-}" ] || fail "training ended by itself (exit status $rc)"
[ $rc != 0 ] || fail "a job that lost a rank has exit status 0"
echo
tell "The job ended within $((SECONDS - killed + 1)) s with exit status $rc, naming who died."
cp $demo/metrics.jsonl $demo/metrics-killed.jsonl

# ---- resume on another mesh ---------------------------------------------------------------------

heading "4. Resumed on two ranks"
tell "The newest checkpoint was written by 2 x 2 ranks. Now two ranks resume from it with FULL_SHARD:" \
    "the same rows in the same order, the same schedule, the loss where it was."
resumed_at=$(basename "$(ls -d $demo/checkpoints/step-[0-9]* | tail -n 1)")
resumed_at=$((10#${resumed_at#step-}))
echo
say fsdp-launch -n 2 $config "${settings[@]}" fsdp.sharding_strategy=FULL_SHARD checkpoint.resume=must
fsdp-launch -n 2 $config "${settings[@]}" fsdp.sharding_strategy=FULL_SHARD checkpoint.resume=must &
launcher=$!
while kill -0 $launcher 2>/dev/null; do
    late 480 && kill -TERM $launcher && stopped=1 && break
    sleep 0.5
done
wait $launcher
rc=$?
launcher=
[ $rc = 0 ] || { [ $rc = 75 ] && [ -n "${stopped:-}" ]; } || fail "the resumed run failed"
[ $rc = 0 ] || tell "(This machine became slow: the run was asked to save and leave early.)"
echo
tell "Steps after $resumed_at that were made twice, by four ranks before the kill and now by two:"
echo
awk -v from="$resumed_at" '
    function value(name) {
        match($0, "\"" name "\": *[-+.0-9eE]+")
        return substr($0, RSTART + length(name) + 3, RLENGTH - length(name) - 3) + 0
    }
    NR == FNR { before[value("step")] = value("loss"); next }
    (step = value("step")) > from && step in before {
        loss = value("loss")
        diff = loss > before[step] ? loss - before[step] : before[step] - loss
        worst = diff > worst ? diff : worst
        if (n++ < 3) printf "  step %d   loss %.6f   now %.6f\n", step, before[step], loss
    }
    END { printf "  ...\n  largest difference of %d steps: %.2g\n", n, worst; exit !(n > 0 && worst < 0.01) }
' $demo/metrics-killed.jsonl $demo/metrics.jsonl || fail "the loss did not resume where it was"

# ---- what is left -------------------------------------------------------------------------------

heading "5. The checkpoint"
newest=$(ls -d $demo/checkpoints/step-[0-9]* | tail -n 1)
say ckpt-info "$newest"
ckpt-info "$newest" >$demo/info || fail "ckpt-info"
head -n 18 $demo/info
echo "... ($(($(wc -l <$demo/info) - 18)) more)"
echo
show ckpt-verify "$newest" || fail "ckpt-verify"
echo
show ckpt-merge "$newest" -o $demo/merged/ || fail "ckpt-merge"
echo
show ls -l $demo/merged

heading "6. The model writes"
show fsdp-generate --model $demo/merged --prompt "And the king said unto " --max-tokens 300 \
    --temperature 0.5 --seed 1 || fail "fsdp-generate"

heading "7. What it learned"
eval_loss=$(metric eval_loss)
[ -n "$eval_loss" ] || fail "no held-out loss in $demo/metrics.jsonl"
# Of a metrics file fsdp-plot marks the kill and the resume itself, and draws twice what ran twice.
picture=(--keys loss,tokens_per_s --level "$unigram:a unigram model"
    --title "A small Llama on 4 ranks, killed, resumed on 2: the same curve")
fsdp-plot $demo/metrics.jsonl "${picture[@]}" -o $demo/loss.svg || fail "no picture"
say fsdp-plot $demo/metrics.jsonl
[ ! -t 1 ] && width=(--width 92 --height 28) || width=()
fsdp-plot $demo/metrics.jsonl "${picture[@]}" "${width[@]}" || fail "no picture in the terminal"
echo
awk -v u="$unigram" -v e="$eval_loss" 'BEGIN {
    printf "  held-out loss, a unigram model    %.4f nats per byte\n", u
    printf "  held-out loss, this model         %.4f nats per byte\n", e
    printf "  better by                         %.4f\n", u - e
    exit !(u - e >= 0.4) }' || fail "the model is not better than a unigram model by 0.4"
cat <<END

  metrics          $demo/metrics.jsonl
  loss curve       $demo/loss.svg  (fsdp-plot METRICS -o FILE.svg or FILE.png)
  report           $demo/report.html
  checkpoints      $demo/checkpoints/
  merged weights   $demo/merged/  (a Hugging Face folder, with its tokenizer)

Done in $((SECONDS - began)) s.
END
