#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Whole runs of fsdp-launch: train, resume on the same and on another mesh, stop, die, refuse.
set -u
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/train.sh"
latest() { ls -d "$1"/step-* 2>/dev/null | grep -v tmp | tail -n 1; }

make_input
head -c 700 text >held-out
cat >run.yaml <<END
model: {path: model, init: random, seed: 1}
data: {path: text, eval_path: held-out, seq_len: 32}
train: {steps: 8, global_batch_size: 12, seed: 2, eval_interval: 4}
optim: {lr: 3.0e-3, schedule: constant, warmup_steps: 3}
fsdp: {timeout: 60}
checkpoint: {path: ck, interval: 4, fsync: false}
log: {metrics: m.jsonl}
END
hybrid="fsdp.sharding_strategy=HYBRID_SHARD"

# ---- one run, and the same in two parts ----------------------------------------------------------

run -v -n 4 --nodes 2 run.yaml $hybrid checkpoint.path=whole log.metrics=whole.jsonl
ok $? "4 ranks as 2 x 2 train"
ok "$(holds log 'HYBRID_SHARD, 2 x 2'; echo $?)" "the mesh is shown"
ok "$(holds log 'memory of rank 0, planned'; echo $?)" "the memory plan is shown"
ok "$(holds log 'step 8/8'; echo $?)" "steps are shown as lines"
ok "$([ "$(wc -l <whole.jsonl)" = 8 ]; echo $?)" "a line of metrics for each step"
keys='^\{"step": 8, "loss": [0-9.]+, "grad_norm": [0-9.]+, "perplexity": [0-9.]+, "lr": 0.003, "tokens": 3072, "examples": 96, '
keys+='"tokens_per_s": [0-9.]+, "tflops": [0-9.e-]+, "step_s": [0-9.e-]+, "data_s": [0-9.e-]+, "exposed_comm_s": [0-9.e-]+, '
keys+='("eval_s": [0-9.e-]+, )?"time": [0-9.e-]+, "wall": [0-9]+[.][0-9]{3}, "attempt": 1, "ranks": 4, "memory_bytes": [0-9.e+]+, '
keys+='("slowest_rank": [0-3], "slowest_s": [0-9.e-]+, )?"eval_loss": [0-9.]+, "eval_nats_per_byte": [0-9.]+, "eval_bits_per_byte": [0-9.]+, "eval_perplexity": [0-9.]+\}$'
ok "$(tail -n 1 whole.jsonl | grep -q -E "$keys"; echo $?)" "with every key"
ok "$([ "$(ls whole)" = "$(printf 'status.json\nstep-00000004\nstep-00000008')" ]; echo $?)" "two checkpoints, and the run's status"

run -n 4 --nodes 2 run.yaml $hybrid train.steps=4 checkpoint.path=parts log.metrics=parts.jsonl &&
    run -n 4 --nodes 2 run.yaml $hybrid checkpoint.path=parts log.metrics=parts.jsonl
ok $? "the same run in two parts"
ok "$(holds log 'resumes from parts/step-00000004'; echo $?)" "the second resumes"
ok "$(grep -q '^done: 8 steps, 4 of them now, 1,536 tokens in ' log; echo $?)" "and says what it did itself"
ok "$(cmp -s <(numbers whole.jsonl) <(numbers parts.jsonl); echo $?)" "metrics are equal to the last digit"
ok "$([ -n "$(prints whole/step-00000008)" ] &&
    cmp -s <(prints whole/step-00000008) <(prints parts/step-00000008); echo $?)" \
    "weights and optimizer state are bit-equal"

# ---- another mesh ----------------------------------------------------------------------------------

cp -r whole other && rm -r other/step-00000008 && head -n 6 whole.jsonl >other.jsonl
run -n 3 run.yaml fsdp.sharding_strategy=FULL_SHARD checkpoint.path=other log.metrics=other.jsonl
ok $? "3 ranks FULL_SHARD resume what 2 x 2 saved"
ok "$([ "$(grep -c . other.jsonl)" = 8 ] && cmp -s <(head -n 4 other.jsonl) <(head -n 4 whole.jsonl); echo $?)" \
    "lines of redone steps are replaced, older ones stay"
far=$(paste <(sed 's/.*"loss": \([^,]*\),.*/\1/' whole.jsonl) <(sed 's/.*"loss": \([^,]*\),.*/\1/' other.jsonl) |
    awk '{d = $1 - $2; if (d < 0) d = -d; if (!(d < 2e-5)) bad = bad " " NR ":" $1 "/" $2} END {print bad}')
ok "$([ -z "$far" ]; echo $?)" "and the loss resumes where it was$far"
run -n 1 run.yaml fsdp.sharding_strategy=NO_SHARD checkpoint.path=other log.metrics=other.jsonl
ok $? "a finished run is no failure"
ok "$(holds log 'a higher train.steps continues, another checkpoint.path begins anew'; echo $?)" "and says that there is nothing to do"

# ---- stop and death ---------------------------------------------------------------------------------

long="train.steps=100000 train.eval_interval=0 checkpoint.interval=10 checkpoint.keep=2"
"$launch" -n 2 run.yaml $long checkpoint.path=stop log.metrics=stop.jsonl >log 2>err &
pid=$!
wait_for stop.jsonl '"step": 3'
kill -TERM $pid
wait $pid
code=$?
ok "$([ $code = 75 ]; echo $?)" "SIGTERM ends with the code for requeue ($code)"
step=$(tail -n 1 stop.jsonl | sed 's/{"step": \([0-9]*\).*/\1/')
ok "$([ "$(latest stop)" = "$(printf 'stop/step-%08d' "$step")" ]; echo $?)" \
    "saved at the very step it stopped ($step, $(latest stop))"

"$launch" -n 4 --nodes 2 run.yaml $hybrid $long checkpoint.path=dead log.metrics=dead.jsonl >log 2>err &
pid=$!
wait_for dead.jsonl '"step": 25'
victim=$(for child in $(cat "/proc/$pid/task/$pid/children"); do
    tr '\0' '\n' <"/proc/$child/environ" | grep -q -x RANK=3 && echo "$child"
done)
kill -KILL "$victim"
wait $pid
code=$?
ok "$([ $code != 0 ] && [ $code != 75 ]; echo $?)" "SIGKILL to a rank ends the job ($code)"
ok "$(grep -q -i -E 'rank [0-9]+.*(signal 9|killed|SIGKILL)' err; echo $?)" "and the rank is named"
ok "$([ "$(grep -c 'is lost' err)" -le 1 ] && [ "$(grep -c '^fsdp-launch: rank 3 .* was killed' err)" = 1 ]; echo $?)" \
    "by one of those who lost it, and by the launcher"
ok "$([ "$(ls -d dead/step-* | grep -c -v tmp)" -le 3 ]; echo $?)" "old checkpoints were removed"
from=$(latest dead)
step=$((10#${from##*-} + 2))
run -n 2 run.yaml checkpoint.path=dead log.metrics=dead.jsonl train.steps=$step
ok $? "2 ranks resume what the 4 left"
ok "$(holds log "resumes from $from"; echo $?)" "from the newest checkpoint, $from"
ok "$([ "$(tail -n 1 dead.jsonl | grep -c "\"step\": $step,")" = 1 ] &&
    [ "$(sed 's/{"step": \([0-9]*\).*/\1/' dead.jsonl | sort -n -u | wc -l)" = $step ]; echo $?)" \
    "metrics have every step once"

# ---- prompts, packed, with dropout and selective checkpointing ------------------------------------------

for i in $(seq 150); do
    echo "{\"prompt\": \"$i times $((i % 7)) is \", \"completion\": \"$((i * (i % 7)))\"}"
done >prompts
prompts="data.format=jsonl data.path=prompts data.eval_path= train.eval_interval=0 data.document_end=10
    model.dropout=0.2 fsdp.activation_checkpointing=selective"
run -n 2 run.yaml $prompts checkpoint.path=packed log.metrics=packed.jsonl
ok $? "a run on prompts"
ok "$(holds log '150 documents of' && holds log 'dropout' && [ ! -s err ]; echo $?)" "says what it has, and complains of nothing"
run -n 2 run.yaml $prompts checkpoint.path=packed2 log.metrics=packed2.jsonl train.steps=4
run -n 2 run.yaml $prompts checkpoint.path=packed2 log.metrics=packed2.jsonl
ok "$(holds log 'resumes from packed2/step-00000004'; echo $?)" "the same in two parts"
ok "$(cmp -s <(prints packed/step-00000008) <(prints packed2/step-00000008) &&
    [ -n "$(prints packed/step-00000008)" ] &&
    cmp -s <(numbers packed.jsonl) <(numbers packed2.jsonl); echo $?)" "is bit-equal, with what was dropped"
for i in $(seq 150); do echo '{"input_ids": [65, 66, 67], "labels": [-100, -100, -100]}'; done >unlearned
run -n 2 run.yaml $prompts data.path=unlearned checkpoint.path= checkpoint.interval=0 log.metrics= train.steps=60
ok "$([ $? != 0 ] && holds err 'no token of the rows of 50 steps in a row counts in the loss'; echo $?)" "rows without a token to learn end it"
run -n 2 run.yaml $prompts checkpoint.path=fast log.metrics=fast.jsonl model.attention_dropout=fast
ok "$(cmp -s <(prints packed/step-00000008) <(prints fast/step-00000008); echo $?)" "dropout as the device likes it: the CPU's own"
run -n 2 run.yaml $prompts checkpoint.path=packed data.pack=none train.steps=9
ok "$([ $? = 1 ] && holds err 'files, their sizes or data.pack differ'; echo $?)" "and continues with rows packed alike alone"

# ---- where a run begins ------------------------------------------------------------------------------

run -n 2 run.yaml train.steps=0 checkpoint.path=initial
ok $? "no steps: the initial state is saved"
echo '{"step": 9, "loss": 1}' >of_another.jsonl
run -n 2 run.yaml train.steps=0 checkpoint.path=stepless log.metrics= log.html=none.html log.prometheus=none.prom
ok "$([ $? = 0 ] && holds stepless/status.json '"state": "done"' && grep -q '^fsdp_running{.*} 0$' none.prom &&
    holds none.html 'finished</span> step 0 of 0, without a step' && holds none.html 'No step: train.steps is 0'; echo $?)" \
    "which status, report and Prometheus tell"
run -n 2 run.yaml train.steps=0 checkpoint.path=stepless2 log.metrics=of_another.jsonl log.tensorboard=none.events
ok "$([ "$(cat of_another.jsonl)" = '{"step": 9, "loss": 1}' ] && [ ! -e of_another.jsonl.redone ] && [ ! -e none.events ]; echo $?)" \
    "files of steps are left alone"
run -n 3 run.yaml train.steps=0 checkpoint.path=initial3
ok "$(cmp -s <(prints initial/step-00000000) <(prints initial3/step-00000000) &&
    [ -n "$(prints initial/step-00000000)" ]; echo $?)" "the same on 2 and 3 ranks"
run -n 2 run.yaml checkpoint.path=initial log.metrics=initial.jsonl
ok "$(cmp -s <(grep -o '"step": 1, "loss": [^,]*' initial.jsonl | head -c 30) \
    <(grep -o '"step": 1, "loss": [^,]*' whole.jsonl | head -c 30); echo $?)" "and can be trained from"

refused() { # code or '', what must stand in err, text
    local code=$?
    { [ -n "$1" ] && [ $code = "$1" ] || [ -z "$1" ] && [ $code != 0 ]; } && holds err "$2"
    ok $? "$3"
}
run -n 2 run.yaml checkpoint.path=whole checkpoint.resume=never
refused '' "there is already whole/step-00000008" "a run does not write over another's checkpoints"
run -n 2 run.yaml checkpoint.path=nothing checkpoint.resume=must
refused '' "must resume, but there is no checkpoint in nothing" "must resume from nothing"
run -n 2 run.yaml checkpoint.path=new checkpoint.resume=nothing/step-00000001
refused '' "nothing/step-00000001" "resume from what is not there"
run -n 2 run.yaml checkpoint.path=parts train.steps=9 train.seed=3
refused '' "was made with train.seed 2, and it is 3 now" "resume with another order of the data"
run -n 2 run.yaml checkpoint.path=parts train.steps=9 train.seed=3 checkpoint.data_position=restart
ok $? "unless the data starts anew"
run -n 2 run.yaml checkpoint.path=text
refused '' "checkpoint.path" "a checkpoint folder that is a file"
run -n 2 run.yaml checkpoint.path=new log.metrics=text/m.jsonl
refused '' "text" "metrics where they cannot be"
run -n 2 run.yaml checkpoint.path=new model.init=pretrained
refused '' "model" "pretrained without weights"
head -c 100 text >short
run -n 2 run.yaml checkpoint.path=new data.path=short data.format=u16 data.layout=rows
refused '' "short: truncated" "a truncated data file"
run -n 2 run.yaml checkpoint.path=new data.seq_len=100000
refused 2 "command line: data.seq_len: 100000 is longer than the model's 256" "rows that the model does not reach over"
run -n 2 run.yaml checkpoint.path=new fsdp.shard_size=3
refused 2 "command line: fsdp.shard_size: shard_size 3 does not divide the world of 2 ranks" "a setting that all ranks refuse"
ok "$([ "$(grep -c '^fsdp-launch: command line: fsdp.shard_size: ' err)" = 1 ] && [ "$(grep -c . err)" = 1 ]; echo $?)" "which is said once, without a rank"
run -n 4 run.yaml checkpoint.path=new $hybrid fsdp.shard_size=3
refused 2 "command line: fsdp.shard_size: shard_size 3 does not divide the world of 4 ranks: choose a divisor, or another number of ranks (fsdp-launch -n)" \
    "a mesh that the ranks do not make: where it was asked for, and how to have others"
run -n 2 run.yaml checkpoint.path=new fsdp.backend=self
refused 2 "command line: fsdp.backend: comm world: backend 'self' cannot serve" "a backend that cannot"
run --nnodes 2 --node-rank 0 --master-addr 127.0.0.1 --timeout 2 run.yaml fsdp.backend=mpi
refused 2 "fsdp-launch: --nnodes 2: fsdp.backend=mpi needs ranks that mpirun or srun --mpi=pmix started. Type fsdp.backend=host" \
    "MPI on nodes that are started by hand, at once"
run -n 2 run.yaml checkpoint.path=new "fsdp.frozen=[nothing]"
refused 2 "command line: fsdp.frozen: frozen parameters: none matches 'nothing'" "a name that the model does not have"
run -n 2 run.yaml checkpoint.path=new checkpoint.resume=nowhere
refused 2 "command line: checkpoint.resume: 'nowhere': No such file or directory" "a checkpoint that is not there"
run run.yaml checkpoint.path=new log.tensorboard=text/x
refused 1 "command line: log.tensorboard: TensorBoard: cannot create the folder 'text/x': " "a place for metrics that is a file"
run -n 2 run.yaml checkpoint.path=new model.path=nowhere
refused 2 "command line: model.path: nowhere: No such file or directory" "a model that is not there"
mkdir empty
run -n 2 run.yaml checkpoint.path=new model.path=empty
refused 2 "model.path: empty holds no config.json" "a folder without a model"
run -n 2 run.yaml checkpoint.path=new "data.path=[nowhere]"
refused 2 "data.path: nowhere: No such file or directory" "data that is not there"
sed 's/"llama"/"camel"/' model/config.json >model/config.new && mkdir camel && mv model/config.new camel/config.json
run -n 2 run.yaml checkpoint.path=new model.path=camel
refused '' "camel" "a model of another family"
run -n 2 run.yaml train.stepz=5
refused 2 "did you mean train.steps" "an unknown key"
ln -s nowhere dangling
run -n 2 run.yaml checkpoint.path=dangling
refused '' "checkpoint.path: 'dangling' is a link to 'nowhere', which is not there" "a folder of checkpoints that is a link to nothing"
run -n 2 missing.yaml
refused 2 "missing.yaml" "no configuration"
ok "$([ ! -e new ] || [ -z "$(latest new)" ]; echo $?)" "none of these left a checkpoint"

"$launch" --print-config run.yaml train.steps=77 >printed.yaml 2>err
ok $? "--print-config"
ok "$(holds printed.yaml '  steps: 77' && holds printed.yaml '  path: [text]'; echo $?)" "prints what is set"
"$launch" --print-config run.yaml >/dev/full 2>err
ok "$([ $? = 1 ] && holds err 'cannot write the configuration: No space left on device'; echo $?)" "to a disk that is full: failed, not wrong usage"
"$launch" --print-metrics >/dev/full 2>err
ok "$([ $? = 1 ] && holds err 'No space left on device'; echo $?)" "--print-metrics, too"
run -n 2 printed.yaml checkpoint.path=printed train.steps=1 log.metrics=
ok $? "and can be run"

(cd "$TOP" && "$launch" -n 2 examples/llama-tiny.yaml train.steps=2 train.eval_interval=0 \
    optim.warmup_steps=1 checkpoint.path="$TEST_TMP/example" \
    log.metrics="$TEST_TMP/example.jsonl") >log 2>err
ok $? "examples/llama-tiny.yaml"
for f in "$TOP"/examples/*.yaml; do
    "$launch" --print-config "$f" >/dev/null 2>err
    ok $? "$(basename "$f") is a configuration"
done

echo "1..$n"
exit $bad
