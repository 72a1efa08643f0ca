#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# run: timeout=600
# Every optimizer, and several in one run, end to end: a run in two parts is the same run to the bit, and on other numbers of
# ranks the same to summation order; its state passes through ckpt-reshard and torch's format;
# schedulefree evaluates and saves x.
set -u
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/train.sh"
run() { "$launch" "$@" >log 2>err || { sed 's/^/# /' err; false; }; }
tool() { "$BIN/$1" "${@:2}" >log 2>err || { sed 's/^/# /' err log; false; }; }
refused() { ! "$launch" "${@:2}" >log 2>err && holds err "$1" || { sed 's/^/# /' err; false; }; }

make_input
cat >run.yaml <<END
model: {path: model, init: random, seed: 1}
data: {path: text, seq_len: 32}
train: {steps: 6, global_batch_size: 12, seed: 2}
optim: {lr: 1.0e-3, schedule: constant, warmup_steps: 2, groups: ["*norm*: lr_scale=0.5 betas=0.8,0.9"]}
fsdp: {timeout: 60}
checkpoint: {interval: 3, fsync: false}
END

# Rounding changes a code of 8 bits now and then, by which a weight moves further.
near() { # name, two checkpoints
    if [ "$1" = adamw8bit ]; then tool ckpt-diff "$2" "$3" --model --atol 5e-4; else tool ckpt-diff "$2" "$3" --atol 1e-5; fi
}

for name in adam lion schedulefree adamw8bit adafactor muon; do
    set_name=optim.name=$name
    case $name in
    adafactor) set_name="$set_name optim.groups=[]" ;;
    muon) set_name="$set_name optim.momentum=0.95 optim.nesterov=true" ;;
    esac
    run -n 3 run.yaml $set_name checkpoint.path=$name
    ok $? "$name: 3 ranks train"
    cp -r $name half && rm -r half/step-00000006
    run -n 3 run.yaml $set_name checkpoint.path=half
    ok "$([ $? = 0 ] && same $name/step-00000006 half/step-00000006; echo $?)" "$name: its second half is bit-equal"
    rm -r half
    for ranks in 1 4; do
        cp -r $name half && rm -r half/step-00000006
        run -n $ranks --nodes $((ranks > 1 ? 2 : 1)) run.yaml $set_name checkpoint.path=half \
            fsdp.sharding_strategy=$([ $ranks = 1 ] && echo NO_SHARD || echo HYBRID_SHARD)
        near $name $name/step-00000006 half/step-00000006
        ok $? "$name: its second half on $ranks rank(s) differs by rounding alone"
        rm -r half
    done
    run -n 2 run.yaml $set_name checkpoint.path=two
    near $name $name/step-00000006 two/step-00000006
    ok $? "$name: the same run on 2 ranks, from its start"
    run -n 3 run.yaml $set_name checkpoint.path=offloaded fsdp.offload=optimizer
    ok "$([ $? = 0 ] && same $name/step-00000006 offloaded/step-00000006; echo $?)" "$name: offloaded, to the bit"
    run -n 3 run.yaml $set_name checkpoint.path=narrow fsdp.param_dtype=bfloat16 checkpoint.async=true
    cp -r narrow half && rm -r half/step-00000006
    run -n 3 run.yaml $set_name checkpoint.path=half fsdp.param_dtype=bfloat16
    ok "$([ $? = 0 ] && same narrow/step-00000006 half/step-00000006; echo $?)" "$name: in bfloat16, resumed to the bit"
    tool ckpt-reshard $name/step-00000006 -o one --world 1 && tool ckpt-reshard one -o three --world 3 &&
        tool ckpt-diff $name/step-00000006 three
    ok $? "$name: resharded to 1 and back"
    diff -r $name/step-00000006/optim three/optim >/dev/null
    ok $? "$name: in the files that a save at 3 ranks writes"
    tool ckpt-reshard $name/step-00000006 -o dcp --format dcp --world 2 && tool ckpt-reshard dcp -o native --world 3 &&
        tool ckpt-diff $name/step-00000006 native
    ok $? "$name: through torch's format and back"
    rm -rf half two offloaded narrow one three dcp native
    "$launch" -n 2 run.yaml $set_name optim.moment_dtype=bfloat16 train.steps=1 >log 2>err
    rc=$?
    ok "$([ $name = adam ] && [ $rc = 0 ] || { [ $rc != 0 ] && holds err "$name: its state is kept in "; }; echo $?)" \
        "$name: moments in bfloat16 are $([ $name = adam ] && echo supported || echo refused)"
done

# ---- what tells them apart ---------------------------------------------------------------------------

for pair in "adam adamw" "lion adam" "schedulefree lion"; do
    refused "holds ${pair% *}'s state" -n 2 run.yaml optim.name=${pair#* } checkpoint.path=${pair% *} train.steps=7
    ok $? "a run with ${pair#* } does not resume from ${pair% *}'s state"
done
! same adam/step-00000006 lion/step-00000006
ok $? "their weights differ"

! "$BIN/ckpt-reshard" adafactor/step-00000006 -o fused --world 2 --map fuse-gate-up >log 2>err && holds err "kept per column of its parameter"
ok $? "a map that joins rows is refused where state has none"
tool ckpt-reshard adafactor/step-00000006 -o fused --world 2 --map fuse-gate-up --exclude 'state.*'
ok $? "and works on the weights"

# ---- several in one run ------------------------------------------------------------------------------

groups='optim.groups=["*.mlp.*: optimizer=lion lr_scale=0.3 betas=0.9,0.99", "lm_head*: optimizer=adafactor"'
groups="$groups, \"*q_proj*: optimizer=sgd\", \"*k_proj*: optimizer=adam betas=0.8,0.9\"]"
run -n 1 run.yaml "$groups" checkpoint.path=mixed checkpoint.interval=2
ok $? "groups with optimizers of their own: 1 rank trains"
mkdir hops && cp -r mixed/step-00000002 hops
run -n 3 run.yaml "$groups" checkpoint.path=hops checkpoint.interval=2 train.steps=4 &&
    run -n 2 run.yaml "$groups" checkpoint.path=hops checkpoint.interval=2 fsdp.offload=optimizer
tool ckpt-diff mixed/step-00000006 hops/step-00000006 --atol 1e-5
ok $? "from 1 rank to 3 to 2: the same run to summation order"
states() { grep -o "\"state.$1.[^\".]*\"" mixed/step-00000006/manifest.json | sed 's/.*[.]//; s/"//' | sort | paste -s -d ' '; }
[ "$(states model.layers.0.mlp.up_proj.weight)" = "exp_avg" ] && [ "$(states lm_head.weight)" = "col_var row_var" ] &&
    [ "$(states model.layers.1.self_attn.q_proj.weight)" = "momentum_buffer" ] &&
    [ "$(states model.embed_tokens.weight)" = "exp_avg exp_avg_sq" ]
ok $? "a parameter has the state of its own optimizer alone"
refused "another optimizer's state of" -n 2 run.yaml checkpoint.path=mixed train.steps=7
ok $? "a run in which a parameter has another optimizer does not resume"
refused "unknown optimizer 'adamx'" -n 2 run.yaml 'optim.groups=["*: optimizer=adamx"]'
ok $? "an unknown optimizer of a group is refused"
refused 'sgd: it has no betas' -n 2 run.yaml 'optim.groups=["*: optimizer=sgd betas=0.9,0.9"]'
ok $? "settings that a group's optimizer has not are refused"
refused 'no other optimizer can be next to it' -n 2 run.yaml 'optim.groups=["*norm*: optimizer=schedulefree"]'
ok $? "schedulefree in a group is refused"
refused 'cannot be split' -n 2 run.yaml optim.name=adafactor 'optim.groups=[]' optim.master=split fsdp.param_dtype=bfloat16
ok $? "adafactor with split masters is refused"
refused 'cannot be split' -n 2 run.yaml optim.name=muon optim.master=split fsdp.param_dtype=bfloat16
ok $? "muon with split masters is refused"
refused 'it has no dampening' -n 2 run.yaml optim.name=muon optim.dampening=0.1
ok $? "muon with dampening is refused"
cp -r muon matrices && rm -r matrices/step-00000006
run -n 1 run.yaml optim.name=muon optim.momentum=0.95 optim.nesterov=true checkpoint.path=matrices train.steps=4 &&
    run -n 2 run.yaml optim.name=muon optim.momentum=0.95 optim.nesterov=true checkpoint.path=matrices
tool ckpt-diff muon/step-00000006 matrices/step-00000006 --atol 1e-5
ok $? "muon: from 3 ranks to 1 to 2"
tool ckpt-reshard muon/step-00000003 -o dcp --format dcp --world 2 &&
    run -n 3 run.yaml optim.name=muon optim.momentum=0.95 optim.nesterov=true checkpoint.path=torched checkpoint.resume=dcp &&
    tool ckpt-diff muon/step-00000006 torched/step-00000006
ok $? "muon: resumed from torch's format, to the bit"
rm -rf dcp
refused 'adafactor: it has no betas' -n 2 run.yaml optim.name=adafactor
ok $? "betas of a group are refused for adafactor"

# ---- schedulefree ------------------------------------------------------------------------------------

run -n 3 run.yaml optim.name=schedulefree data.eval_path=text data.eval_rows=24 train.eval_interval=3 \
    checkpoint.path=evaluated log.metrics=evaluated.jsonl
ok "$([ $? = 0 ] && same schedulefree/step-00000006 evaluated/step-00000006; echo $?)" \
    "an evaluation in mid-run changes no bit of it"
tool ckpt-reshard schedulefree/step-00000006 -o averaged --format dcp --world 2
ok "$([ $? = 0 ] && grep -q 'no place for the sum of the step weights' err; echo $?)" "torch's format cannot continue it, which is told"
tool ckpt-merge schedulefree -o merged
cp model/*.json merged/ 2>/dev/null
run -n 2 run.yaml model.path=merged model.init=pretrained optim.name=sgd optim.lr=0 "optim.groups=[]" train.steps=1 data.eval_path=text \
    data.eval_rows=24 train.eval_interval=1 log.metrics=merged.jsonl
loss_of() { grep -o '"eval_loss": *[0-9.e+-]*' "$1" | tail -n 1 | grep -o '[0-9][0-9.e+-]*$'; }
ok "$(awk -v a="$(loss_of evaluated.jsonl)" -v b="$(loss_of merged.jsonl)" \
    'BEGIN { d = a - b; exit !(a > 0 && b > 0 && d < 1e-5 && d > -1e-5) }'; echo $?)" \
    "the merged weights have the held-out loss that the run reported"
grep -q '"averaging"' schedulefree/step-00000006/manifest.json || grep -q 'averaging' schedulefree/step-00000006/manifest.json
ok $? "the sum of weights is part of a checkpoint"
refused 'cannot be split' -n 2 run.yaml optim.name=schedulefree optim.master=split fsdp.param_dtype=bfloat16
ok $? "split masters are refused"
refused 'not encoded' -n 2 run.yaml optim.name=schedulefree fsdp.gather_dtype=float8_e4m3
ok $? "encoded gathers are refused"
refused 'cannot be skipped' -n 2 run.yaml optim.name=schedulefree fsdp.param_dtype=float16
ok $? "loss scaling is refused"
tool ckpt-reshard schedulefree/step-00000006 -o dcp --format dcp --world 2
refused 'sum of the weights' -n 2 run.yaml optim.name=schedulefree checkpoint.path=torch checkpoint.resume=dcp train.steps=7
ok $? "torch's format, which lacks the sum, is refused"
run -n 2 run.yaml optim.name=schedulefree fsdp.frozen='[model.embed_tokens.*]' checkpoint.path=frozen train.steps=3 &&
    refused 'averages count from the first' -n 2 run.yaml optim.name=schedulefree checkpoint.path=frozen
ok $? "a parameter that joins later is refused"
run -n 2 run.yaml optim.name=schedulefree optim.schedule=cosine train.steps=1 && holds err 'set optim.schedule constant'
ok $? "a schedule is warned of"
echo "1..$n"
exit $bad
