#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Sharding on two levels, overrides of units and gradient buffers, from the configuration to the
# checkpoint: its files hold the same boxes as on one level, and resume anywhere.
set -u
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/train.sh"
run() { timeout -k 5 100 "$BIN/fsdp-launch" "$@" >log 2>err; }
holds() { grep -q -E -- "$2" "$1"; }
refused() { # text that the error must hold, then arguments
    local want=$1
    shift
    run --dump-schedule run.yaml "$@"
    local rc=$?
    ok "$([ $rc != 0 ] && holds err "$want"; echo $?)" "refused: $want"
}

make_input 200
cat >run.yaml <<END
model: {path: model, init: random, seed: 1}
data: {path: text, seq_len: 32}
train: {steps: 2, global_batch_size: 12, seed: 2}
# AdamW takes a gradient that is 0 but for the order of a sum for a full step, unless eps is far above it.
optim: {lr: 1.0e-3, schedule: constant, eps: 1.0e-5}
fsdp: {timeout: 60}
checkpoint: {path: ck, fsync: false}
END

# ---- what is planned -----------------------------------------------------------------------------

run -n 4 --nodes 2 --dump-schedule run.yaml fsdp.two_level=true fsdp.grad_buffers=1
ok $? "two levels are planned"
ok "$(holds log 'two levels' && holds log '^ +1  outer_gather ' && holds log '  outer_reduce  model'; echo $?)" \
    "gathers and reductions over the nodes are in the list"
run -n 2 --dump-schedule run.yaml fsdp.two_level=true
ok "$(! holds log 'outer_gather'; echo $?)" "but not within one node"
run -n 2 --dump-schedule run.yaml
free='^ +[0-9]+  -  .*free +model.layers.0 '
two=$(grep -c -E "$free" log)
run -n 2 --dump-schedule run.yaml 'fsdp.unit_overrides=model.layers.0 reshard_after_forward=false'
ok "$([ "$two" = 3 ] && [ "$(grep -c -E "$free" log)" = 2 ]; echo $?)" \
    "a layer that is kept after forward is freed once less"
refused "'reshard' in an override" -n 2 'fsdp.unit_overrides=model.layers.0 reshard=false'
refused "no module has name 'model.layer.0'" -n 2 'fsdp.unit_overrides=model.layer.0 reshard_after_forward=false'
refused "fsdp.grad_buffers" -n 2 fsdp.grad_buffers=0

# ---- what is saved -------------------------------------------------------------------------------

# Names of the files, and the headers before the data: which box of what they hold.
boxes() {
    (cd "$1/step-00000002" && for f in model/* optim/*; do
        echo "$f $(head -c "$((8 + $(od -An -tu8 -N8 "$f")))" "$f" | cksum)"
    done)
}
run -n 4 --nodes 2 run.yaml checkpoint.path=one
ok $? "4 ranks train on one level"
run -n 4 --nodes 2 run.yaml checkpoint.path=two fsdp.two_level=true
ok $? "and on two"
ok "$([ "$(boxes one | wc -l)" = 8 ] && cmp -s <(boxes one) <(boxes two); echo $?)" \
    "each file holds the same boxes"
"$BIN/ckpt-diff" --model --atol 1e-6 one/step-00000002 two/step-00000002 >log 2>err
ok $? "weights differ by the order of sums alone"
run -n 3 run.yaml checkpoint.path=two train.steps=3
ok "$([ $? = 0 ] && holds log 'resumes from two/step-00000002'; echo $?)" "three ranks resume from it on one level"
run -n 6 --nodes 3 run.yaml checkpoint.path=two train.steps=4 fsdp.two_level=true
ok "$([ $? = 0 ] && holds log 'resumes from two/step-00000003'; echo $?)" "and six on three nodes on two"
echo "1..$n"
exit $bad
