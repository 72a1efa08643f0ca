#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A run in two parts is the same run: with SGD, parameter groups and a moving average; and for units
# that are cut in chunks, on other numbers of ranks. A job that began elsewhere resumes from its own.
set -u
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/train.sh"
run() { "$launch" "$@" >log 2>err || { sed 's/^/# /' err; false; }; }

make_input
cat >run.yaml <<END
model: {path: model, init: random, seed: 1}
data: {path: text, seq_len: 32}
train: {steps: 6, global_batch_size: 12, seed: 2}
optim: {lr: 3.0e-3, schedule: cosine, warmup_steps: 2}
fsdp: {timeout: 60}
checkpoint: {interval: 3, fsync: false}
END

# ---- SGD, groups, a moving average -----------------------------------------------------------------

cat >sgd.yaml <<END
model: {path: model, init: random, seed: 1}
data: {path: text, seq_len: 32}
train: {steps: 6, global_batch_size: 12, seed: 2}
optim: {name: sgd, lr: 0.1, momentum: 0.8, dampening: 0.1, ema_decay: 0.9, schedule: linear, warmup_steps: 2,
        groups: ["*norm*: weight_decay=0", "model.embed_tokens.* lm_head.*: lr=0.03 weight_decay=0.2"]}
fsdp: {timeout: 60, frozen: [model.norm.weight]}
checkpoint: {interval: 3, fsync: false}
END
run -n 3 sgd.yaml checkpoint.path=whole log.metrics=whole.jsonl
ok $? "3 ranks train with SGD, parameter groups and a moving average"
ok "$(grep -q -F 'state.lm_head.weight.ema' whole/step-00000006/manifest.json &&
    grep -q -F 'state.lm_head.weight.momentum' whole/step-00000006/manifest.json; echo $?)" \
    "momentum and average are saved"
cp -r whole parts && rm -r parts/step-00000006 && cp whole.jsonl parts.jsonl
run -n 3 sgd.yaml checkpoint.path=parts log.metrics=parts.jsonl
ok "$([ $? = 0 ] && holds log 'resumes from parts/step-00000003'; echo $?)" "its second half, once more"
ok "$(same whole/step-00000006 parts/step-00000006; echo $?)" "weights, momentum and average are bit-equal"
"$BIN/ckpt-reshard" whole/step-00000006 -o half --world 2 --dtype float16 >log 2>err && "$BIN/ckpt-diff" half whole/step-00000006 >log 2>err
ok "$([ $? = 1 ] && [ "$(grep -c '^dtype .*F16 and F32' log)" -ge 20 ] && ! grep '^dtype .*F16' log | grep -q momentum_buffer &&
    grep -q '^dtype .*model' log; echo $?)" "cast to float16, the optimizer's state keeps its type"
ok "$(cmp -s <(numbers whole.jsonl) <(numbers parts.jsonl); echo $?)" "and so are the metrics"
ok "$(! same whole/step-00000003 whole/step-00000006; echo $?)" "which are others than before it"

tool() { "$BIN/$1" "${@:2}" >log 2>err; }
echo 'state.**.ema -> $1' >rules
tool ckpt-merge whole -o weights && tool ckpt-merge whole --ema -o averages &&
    tool ckpt-merge whole --all --include 'state.*.ema' -o kept.safetensors
ok $? "weights and averages, merged"
tool ckpt-diff averages weights
ok "$([ $? = 1 ] && holds log '1 tensor is the same, 0 near, 20 different'; echo $?)" \
    "averages are other weights, but for what is frozen"
tool ckpt-diff --map rules --exclude model.norm.weight averages kept.safetensors
ok "$([ $? = 0 ] && holds log '20 tensors are the same'; echo $?)" "and those that were kept"
tool ckpt-merge weights --ema -o none
ok "$([ $? = 1 ] && holds err 'no moving average of the weights'; echo $?)" "where there are none, it is said"

# ---- a job that begins with another run's checkpoint -------------------------------------------------

job() { SLURM_JOB_ID=17 "$launch" -n 2 run.yaml checkpoint.path=job checkpoint.resume=origin/step-00000002 "$@" >log 2>err; }
run -n 2 run.yaml checkpoint.path=origin train.steps=2 && job train.steps=4
ok "$([ $? = 0 ] && holds log 'resumes from origin/step-00000002'; echo $?)" "a job begins with another run's checkpoint"
SLURM_RESTART_COUNT=1 job
ok "$([ $? = 0 ] && holds log 'resumes from job/step-00000004'; echo $?)" "started again, it resumes from its own"
job train.steps=8
ok "$([ $? = 1 ] && holds err 'there is already job/step-00000006, and this run begins at step 2'; echo $?)" \
    "nobody but Slurm means that by the same command"
SLURM_RESTART_COUNT=1 job checkpoint.path=origin train.steps=8
ok "$([ $? = 0 ] && holds log 'resumes from origin/step-00000002'; echo $?)" "nor does a job in a folder to which it has not saved"
mkdir aside && mv job/step-* aside
SLURM_RESTART_COUNT=1 job
ok "$([ $? = 1 ] && holds err 'finds no checkpoint in job, although one was saved'; echo $?)" \
    "if its own are gone, it does not begin once more"

run -n 2 run.yaml checkpoint.path=renamed train.steps=2 && mv renamed/step-00000002 renamed/step-00000009
for from in auto ./renamed/step-00000009; do
    "$launch" -n 2 run.yaml checkpoint.path=renamed checkpoint.resume=$from train.steps=8 >log 2>err
    ok "$([ $? = 1 ] && holds err 'step-00000009 is a checkpoint of step 2' && holds err 'rename it to step-00000002'; echo $?)" \
        "a checkpoint of another name than its step, from $from"
done

# ---- units cut in chunks ----------------------------------------------------------------------------

# Row lengths of 24 and 1103 have no small multiple in common: cut between rows, each shard of a layer
# would be padded by more than a MiB.
sed -E 's/("hidden_size": )[0-9]+/\124/; s/("intermediate_size": )[0-9]+/\11103/; s/("head_dim": )[0-9]+/\16/;
    s/("num_attention_heads": )[0-9]+/\14/; s/("num_key_value_heads": )[0-9]+/\12/' -i model/config.json
run -n 4 run.yaml --dump-schedule
ok "$(holds log unpack; echo $?)" "a model whose layers are cut in chunks"
run -n 4 run.yaml checkpoint.path=four log.metrics=four.jsonl
ok $? "4 ranks train it"
for ranks in 1 3; do
    cp -r four other$ranks && rm -r other$ranks/step-00000006 && cp four.jsonl other$ranks.jsonl
    run -n $ranks run.yaml checkpoint.path=other$ranks log.metrics=other$ranks.jsonl
    ok "$([ $? = 0 ] && holds log "resumes from other$ranks/step-00000003"; echo $?)" "$ranks resume what the 4 saved"
    far=$(paste <(sed 's/.*"loss": \([^,]*\),.*/\1/' four.jsonl) <(sed 's/.*"loss": \([^,]*\),.*/\1/' other$ranks.jsonl) |
        awk '{d = $1 - $2; if (d < 0) d = -d; if (!(d < 2e-5)) bad = bad " " NR ":" $1 "/" $2} END {print bad}')
    ok "$([ -z "$far" ] && [ "$(grep -c . other$ranks.jsonl)" = 6 ]; echo $?)" "and the loss resumes where it was$far"
done
cp -r four still && rm -r still/step-00000006
run -n 3 run.yaml checkpoint.path=still train.steps=4 optim.lr=0
ok $? "3 ranks take a step of no length from what the 4 saved"
ok "$(same four/step-00000003 still/step-00000004 model; echo $?)" "and save the same weights to the bit"
ok "$(! same four/step-00000003 four/step-00000006 model; echo $?)" "a step of some length does not"

# A config.json that changed since the checkpoint, with the same shapes.
cp model/config.json config.json.old && cp -r four changed && rm -r changed/step-00000006
sed -E 's/("rope_theta": )[0-9.]+/\1500000.0/; s/("torch_dtype": )"[a-z0-9]+"/\1"bfloat16"/' -i model/config.json
run -n 2 run.yaml checkpoint.path=changed log.metrics=
ok "$([ $? = 0 ] && grep -q -E "config.json: 'rope_theta' is 500000.0 now, and was [0-9.]+ in changed/step-00000003" err &&
    [ "$(grep -c 'config.json: ' err)" = 1 ]; echo $?)" "a resumed run tells what changed in config.json"
cp config.json.old model/config.json
cp -r four same && rm -r same/step-00000006
run -n 2 run.yaml checkpoint.path=same log.metrics=
ok "$([ $? = 0 ] && ! holds err 'config.json: '; echo $?)" "and nothing where nothing did"

echo "1..$n"
exit $bad
