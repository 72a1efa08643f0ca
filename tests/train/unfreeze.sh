#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# run: timeout=300
# Resume with other optimizer state than the checkpoint's: parameters that were frozen get fresh
# moments and a count of updates of their own, a new average starts from the weights, and another
# optimizer is refused.
set -u
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/train.sh"
run() { "$launch" "$@" >log 2>err || { sed 's/^/# /' err; false; }; }
tool() { "$BIN/$1" "${@:2}" >log 2>err || { sed 's/^/# /' err log; false; }; }

make_input
cat >run.yaml <<END
model: {path: model, init: random, seed: 1}
data: {path: text, seq_len: 32}
train: {steps: 3, global_batch_size: 12, seed: 2}
optim: {lr: 1.0e-3, schedule: constant, weight_decay: 0}
fsdp: {timeout: 60}
checkpoint: {interval: 100, fsync: false}
END
frozen='fsdp.frozen=[model.embed_tokens.*, *.0.mlp.up_proj.weight]'
up=model.layers.0.mlp.up_proj.weight

# continue FROM TO LAUNCH...: copies a root, and trains it further.
continue_in() { rm -rf "$2"; cp -r "$1" "$2"; run "${@:3}" checkpoint.path="$2"; }

run -n 2 run.yaml "$frozen" checkpoint.path=frozen
ok $? "3 steps with two parameters frozen"
continue_in frozen a -n 2 run.yaml train.steps=6
ok "$([ $? = 0 ] && holds log '2 parameters without moments' && holds log 'embed_tokens'; echo $?)" \
    "all parameters train from there on: the log counts and names the new ones"
for n in 1 3; do
    continue_in frozen b -n $n run.yaml train.steps=6
    tool ckpt-diff a/step-00000006 b/step-00000006 --atol 1e-5
    ok $? "on $n rank(s): the same weights and moments"
done
continue_in frozen b -n 4 --nodes 2 run.yaml fsdp.sharding_strategy=HYBRID_SHARD train.steps=6
tool ckpt-diff a/step-00000006 b/step-00000006 --atol 1e-5
ok $? "and with replicas"

# Adam's first update is the learning rate in every element that has a gradient.
continue_in frozen one -n 2 run.yaml train.steps=4
"$BIN/ckpt-diff" frozen/step-00000003 one/step-00000004 --include "$up" >log 2>err
sed 's/^/# /' log
ok "$(grep -E -q 'elements, at most 0\.00(0999|1000)' log; echo $?)" \
    "a fresh parameter's first update has Adam's size: its updates are counted from 1"

continue_in one two -n 3 run.yaml train.steps=6
tool ckpt-diff a/step-00000006 two/step-00000006 --atol 1e-5
ok $? "the counts are part of checkpoints: a run in two parts is the same run"
tool ckpt-reshard one/step-00000004 -o dcp4 --format dcp --world 2
run -n 2 run.yaml train.steps=6 checkpoint.path=torch checkpoint.resume=dcp4
ok "$([ $? = 0 ] && tool ckpt-diff a/step-00000006 torch/step-00000006 --atol 1e-5; echo $?)" \
    "so they are in torch's format"
tool ckpt-reshard frozen/step-00000003 -o dcp3 --format dcp --world 2
run -n 2 run.yaml train.steps=6 checkpoint.path=torch3 checkpoint.resume=dcp3
ok "$([ $? = 0 ] && holds log '2 parameters without moments' &&
    tool ckpt-diff a/step-00000006 torch3/step-00000006 --atol 1e-5; echo $?)" \
    "and a torch checkpoint with frozen parameters resumes likewise"

# ---- averages ---------------------------------------------------------------------------------

continue_in frozen ema -n 2 run.yaml "$frozen" train.steps=4 optim.ema_decay=0.9999999
ok "$([ $? = 0 ] && holds log 'the average starts from its weights'; echo $?)" "a run begins to keep an average"
tool ckpt-merge ema/step-00000004 --ema -o ema.safetensors && tool ckpt-merge frozen/step-00000003 -o w.safetensors &&
    tool ckpt-diff ema.safetensors w.safetensors --atol 1e-6
ok $? "which starts from the loaded weights"
continue_in ema ema2 -n 3 run.yaml train.steps=5 optim.ema_decay=0.9999999
ok "$([ $? = 0 ] && holds log '2 parameters without moments' && ! holds log 'the average starts'; echo $?)" \
    "parameters that become trainable later get theirs then"
continue_in ema plain -n 2 run.yaml train.steps=5
ok "$([ $? = 0 ] && holds err 'holds an average of the weights, and this run keeps none'; echo $?)" \
    "a run that does not keep an average says so"

# ---- another optimizer ------------------------------------------------------------------------

for opts in "optim.name=sgd" "optim.name=sgd optim.momentum=0.9"; do
    rm -rf c; cp -r frozen c
    "$launch" -n 2 run.yaml "$frozen" $opts train.steps=4 checkpoint.path=c >log 2>err
    ok "$([ $? != 0 ] && holds err 'optim.name: is sgd' && holds err "holds adamw's state"; echo $?)" "$opts is refused"
done
run -n 2 run.yaml optim.name=sgd optim.lr=0.1 optim.momentum=0 checkpoint.path=sgd
"$launch" -n 2 run.yaml train.steps=4 checkpoint.path=sgd >log 2>err
ok "$([ $? != 0 ] && holds err 'optim.name: is adamw' && holds err "holds sgd's state"; echo $?)" "and adamw after sgd"
run -n 2 run.yaml optim.name=sgd optim.lr=0.1 optim.momentum=0.9 train.steps=4 checkpoint.path=sgd
ok "$([ $? = 0 ] && holds log 'parameters without moments'; echo $?)" "sgd may begin to keep a momentum"

echo "1..$n"
exit $bad
