#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# run: timeout=400
# Moments in bfloat16, split masters and weights without masters in whole runs: they train as fp32 does, within a bound; a run in
# two parts is the same run; checkpoints hold what was kept, and continue in either type.
set -u
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/train.sh"
run() { "$BIN/fsdp-launch" "$@" >log 2>err || { sed 's/^/# /' err; false; }; }
tool() { "$BIN/$1" "${@:2}" >log 2>err || { sed 's/^/# /' err log; false; }; }
# Moments of a checkpoint that are stored in a type, and all of them.
moments() { grep -o "\"state\.[^\"]*\.exp_avg[^\"]*\": {\"kind\": \"optim\", \"dtype\": \"$2\"" "$1/manifest.json" | wc -l; }
same() { tool ckpt-diff "$1" "$2"; }
# Losses of two runs' metrics, no farther apart than $3 in any step.
near() {
    paste <(sed 's/.*"loss": \([^,]*\),.*/\1/' "$1") <(sed 's/.*"loss": \([^,]*\),.*/\1/' "$2") |
        awk -v most="$3" '{d = $1 - $2; if (d < 0) d = -d; if (d > far) far = d}
            END {print "# apart by at most " far " of " NR " steps"; exit !(NR > 0 && far <= most)}'
}

make_input
cat >run.yaml <<END
model: {path: model, init: random, seed: 1}
data: {path: text, seq_len: 32}
train: {steps: 24, global_batch_size: 12, seed: 2}
optim: {lr: 3.0e-3, schedule: cosine, warmup_steps: 4}
fsdp: {timeout: 60}
checkpoint: {interval: 12, fsync: false}
END
narrow=optim.moment_dtype=bfloat16

# ---- training -------------------------------------------------------------------------------------

run -n 2 run.yaml checkpoint.path=wide log.metrics=wide.jsonl
ok $? "2 ranks train with moments in fp32"
run -v -n 2 run.yaml $narrow checkpoint.path=whole log.metrics=whole.jsonl
ok "$([ $? = 0 ] && holds log 'moments in bfloat16' && holds log 'optimizer state, moments in BF16'; echo $?)" \
    "and in bfloat16, which its tables show"
near wide.jsonl whole.jsonl 0.02
ok $? "losses stay within 0.02 of each other"
ok "$(! same wide/step-00000024 whole/step-00000024 >/dev/null; echo $?)" "though the weights are not the same"
ok "$([ "$(moments whole/step-00000024 BF16)" -gt 0 ] && [ "$(moments whole/step-00000024 F32)" = 0 ] &&
    [ "$(moments wide/step-00000024 BF16)" = 0 ]; echo $?)" "a checkpoint holds moments as they are kept"

cp -r whole parts && rm -r parts/step-00000024 && cp whole.jsonl parts.jsonl
run -n 2 run.yaml $narrow checkpoint.path=parts log.metrics=parts.jsonl
ok "$([ $? = 0 ] && holds log 'resumes from parts/step-00000012'; echo $?)" "its second half, once more"
same whole/step-00000024 parts/step-00000024
ok $? "weights and moments are bit-equal"

run -n 2 run.yaml $narrow checkpoint.path=behind checkpoint.async=true
same whole/step-00000024 behind/step-00000024 && same whole/step-00000012 behind/step-00000012
ok $? "and saved in the background"

run -n 2 run.yaml fsdp.update_at=forward checkpoint.path=during checkpoint.async=true optim.ema_decay=0.9 train.eval_interval=5 data.eval_path=text &&
    run -n 2 run.yaml checkpoint.path=before optim.ema_decay=0.9
same before/step-00000024 during/step-00000024 && same before/step-00000012 during/step-00000012
ok $? "updates during the next forward pass give the same bits, saved in the background, averaged, and evaluated between"

# ---- from one type to the other -------------------------------------------------------------------

cp -r whole wider && rm -r wider/step-00000024
run -v -n 2 run.yaml checkpoint.path=wider
ok "$([ $? = 0 ] && holds log 'moments in BF16 continue in F32' &&
    [ "$(moments wider/step-00000024 BF16)" = 0 ]; echo $?)" "a run continues with its moments in fp32, and says so"
cp -r wide narrower && rm -r narrower/step-00000024
run -v -n 3 run.yaml $narrow checkpoint.path=narrower
ok "$([ $? = 0 ] && holds log 'moments in F32 continue in BF16' &&
    [ "$(moments narrower/step-00000024 F32)" = 0 ]; echo $?)" "and the other way round, on another number of ranks"

# ---- tools ----------------------------------------------------------------------------------------

tool ckpt-reshard whole/step-00000024 -o five --world 5 && tool ckpt-reshard five -o two --world 2 &&
    same whole/step-00000024 two
ok "$([ $? = 0 ] && [ "$(moments five F32)" = 0 ]; echo $?)" "resharded to 5 ranks and back"
tool ckpt-merge whole --all -o all.safetensors && same whole/step-00000024 all.safetensors
ok "$([ $? = 0 ] && head -c 100000 all.safetensors | tr -d '\0' | grep -a -q '"BF16"'; echo $?)" "merged with all its state"
tool ckpt-reshard whole/step-00000024 -o dcp --format dcp --world 3 && same whole/step-00000024 dcp
ok $? "and exported to torch's format"

# ---- split masters --------------------------------------------------------------------------------

half="fsdp.param_dtype=bfloat16"
run -n 2 run.yaml $half checkpoint.path=apart log.metrics=apart.jsonl
ok $? "parameters gathered in bfloat16, with masters next to them"
run -v -n 2 run.yaml $half optim.master=split checkpoint.path=split log.metrics=split.jsonl
ok "$([ $? = 0 ] && holds log 'masters split' && holds log 'the rest of split masters'; echo $?)" \
    "and with masters split, which the tables show"
near apart.jsonl split.jsonl 0.02
ok $? "losses differ by no more than ties in rounding make"
cp -r split again && rm -r again/step-00000024
run -n 2 run.yaml $half optim.master=split checkpoint.path=again
same split/step-00000024 again/step-00000024
ok $? "resumed to the same bits"
cp -r split onward && rm -r onward/step-00000024
run -n 2 run.yaml $half checkpoint.path=onward train.steps=13
ok $? "its checkpoint is one like any other: masters next to the parameters resume from it"

# ---- no masters -----------------------------------------------------------------------------------

# Tensors of a checkpoint, of a kind and type.
stored() { grep -o "\"kind\": \"$2\", \"dtype\": \"$3\"" "$1/manifest.json" | wc -l; }
bare="$half optim.master=none"
run -v -n 2 run.yaml $bare $narrow checkpoint.path=bare log.metrics=bare.jsonl
ok "$([ $? = 0 ] && holds log 'no masters' && holds log 'parameter shards without masters, BF16'; echo $?)" \
    "weights in bfloat16 train without masters, which the tables show"
near apart.jsonl bare.jsonl 0.02
ok $? "losses stay within 0.02 of those with masters"
ok "$([ "$(stored bare/step-00000024 model F32)" = 0 ] && [ "$(stored bare/step-00000024 model BF16)" -gt 0 ]; echo $?)" \
    "a checkpoint holds the weights as they are kept"
cp -r bare bare2 && rm -r bare2/step-00000024
run -n 2 run.yaml $bare $narrow checkpoint.path=bare2 checkpoint.async=true && same bare/step-00000024 bare2/step-00000024
ok $? "resumed to the same bits, and saved in the background"
cp -r bare whole2 && rm -r whole2/step-00000024
run -v -n 1 run.yaml $half $narrow checkpoint.path=whole2
ok "$([ $? = 0 ] && holds log 'weights in BF16 continue in F32' && [ "$(stored whole2/step-00000024 model BF16)" = 0 ]; echo $?)" \
    "a run continues with masters, and says so"
cp -r split bare3 && rm -r bare3/step-00000024
run -v -n 3 run.yaml $bare checkpoint.path=bare3
ok "$([ $? = 0 ] && holds log 'weights in F32 continue in BF16'; echo $?)" "and the other way round, on another number of ranks"
tool ckpt-reshard bare/step-00000024 -o bare5 --world 5 && tool ckpt-reshard bare5 -o bare2of5 --world 2 &&
    same bare/step-00000024 bare2of5 && tool ckpt-merge bare --all -o bare.safetensors &&
    same bare/step-00000024 bare.safetensors
ok $? "resharded to 5 ranks and back, and merged with all its state"
tool ckpt-reshard bare/step-00000024 -o bare.dcp --format dcp --world 3 && same bare/step-00000024 bare.dcp
ok $? "and exported to torch's format"
for ranks in 1 3; do
    run -n $ranks run.yaml $bare optim.name=adamw8bit checkpoint.path=eight$ranks log.metrics=eight$ranks.jsonl || break
done
near eight1.jsonl eight3.jsonl 0.02 && near apart.jsonl eight1.jsonl 0.02
ok $? "with moments in 8 bits, too, on 1 and on 3 ranks"

# ---- gradient shards ------------------------------------------------------------------------------

eight="$bare $narrow fsdp.grad_dtype=bfloat16 train.micro_batch_size=3"
run -v -n 2 run.yaml $eight checkpoint.path=grads log.metrics=grads.jsonl
ok "$([ $? = 0 ] && holds log 'gradient shards, BF16'; echo $?)" "gradient shards in bfloat16, of two micro-steps"
near bare.jsonl grads.jsonl 0.02
ok $? "losses stay within 0.02 of those with fp32 shards"
cp -r grads grads2 && rm -r grads2/step-00000024
run -n 2 run.yaml $eight checkpoint.path=grads2 && same grads/step-00000024 grads2/step-00000024
ok $? "resumed to the same bits"
for setting in fsdp.grad_dtype=bfloat16 fsdp.update_at=reduce fsdp.offload_gradients=true; do
    "$BIN/fsdp-launch" --dump-schedule run.yaml $bare optim.clip_grad_norm=0 $setting log.tensorboard=board \
        log.tensorboard_histograms=2 >log 2>err
    ok "$([ $? != 0 ] && holds err 'log.tensorboard_histograms' && holds err "${setting%=*}" && [ ! -s log ]; echo $?)" \
        "histograms of gradients are refused by the configuration: $setting"
done

# ---- no gradient shards ---------------------------------------------------------------------------

six="$bare $narrow optim.clip_grad_norm=0"
norms() { sed 's/.*"grad_norm": \([^,]*\),.*/\1/' "$1"; }
run -n 2 run.yaml $six checkpoint.path=late log.metrics=late.jsonl &&
    run -v -n 2 run.yaml $six fsdp.update_at=reduce checkpoint.path=early log.metrics=early.jsonl
ok "$([ $? = 0 ] && ! holds log 'gradient shards' && same late/step-00000024 early/step-00000024; echo $?)" \
    "updates at the reduction give the bits of updates after it, without gradient shards"
ok "$([ "$(norms late.jsonl | wc -l)" = 24 ] && cmp -s <(norms late.jsonl) <(norms early.jsonl); echo $?)" "and the same norms"
rm -r early/step-00000024
run -n 2 run.yaml $six fsdp.update_at=reduce fsdp.offload=optimizer checkpoint.path=early checkpoint.async=true &&
    same late/step-00000024 early/step-00000024
ok $? "resumed, with its state offloaded, and saved in the background"
# In shapes that hybrids, two levels, chunks and encoded gathers give the schedule.
mkdir odd # the rows of its matrices have no small common multiple: a layer is cut in chunks
echo '{"model_type": "llama", "hidden_size": 202, "intermediate_size": 206, "num_hidden_layers": 2, "num_attention_heads": 1,
    "num_key_value_heads": 1, "vocab_size": 256, "max_position_embeddings": 64, "rms_norm_eps": 1e-5}' >odd/config.json
early() { # text, ranks and nodes, settings: what -v must show, if it is anything
    local what=$1 ranks=$2 shows=$3 path=shape$n
    shift 3
    # shellcheck disable=SC2086
    run $ranks run.yaml "$@" optim.clip_grad_norm=0 train.steps=3 checkpoint.path="$path-late" log.metrics="$path-late.jsonl" &&
        run -v $ranks run.yaml "$@" optim.clip_grad_norm=0 train.steps=3 checkpoint.path="$path-early" \
            log.metrics="$path-early.jsonl" fsdp.update_at=reduce
    ok "$([ $? = 0 ] && holds log "$shows" && ! holds log 'gradient shards  ' && same "$path-late/step-00000003" "$path-early/step-00000003" &&
        [ "$(norms "$path-late.jsonl" | wc -l)" = 3 ] && cmp -s <(norms "$path-late.jsonl") <(norms "$path-early.jsonl"); echo $?)" \
        "updates at the reduction, $what: the same bits and norms"
}
early "two replicas that share nodes, parameters gathered once" "-n 4 --nodes 2" 'HYBRID_SHARD_ZERO2, 2 x 2' \
    fsdp.sharding_strategy=HYBRID_SHARD_ZERO2 fsdp.param_dtype=bfloat16
early "two levels, in chunks" "-n 4 --nodes 2" 'chunks of gradients' model.path=odd fsdp.two_level=true \
    fsdp.param_dtype=bfloat16 fsdp.reduce_dtype=bfloat16
early "gathered in fp8, in chunks" "-n 3" 'chunks of gradients' model.path=odd fsdp.gather_dtype=float8_e4m3
early "gathered in fp8, on two levels" "-n 4 --nodes 2" 'float8_e4m3' fsdp.gather_dtype=float8_e4m3 fsdp.two_level=true \
    fsdp.param_dtype=bfloat16
late="$bare $narrow fsdp.update_at=reduce optim.clip_late=true optim.clip_grad_norm=0.5"
run -n 2 run.yaml $late checkpoint.path=clip && cp -r clip clip2 && rm -r clip2/step-00000024 &&
    run -n 2 run.yaml $late checkpoint.path=clip2 && same clip/step-00000024 clip2/step-00000024
ok $? "clipped by the norm of the step before: resumed to the same bits"
ok "$(! same early/step-00000024 clip/step-00000024 >/dev/null; echo $?)" "which are others than without"
"$BIN/fsdp-launch" -n 1 run.yaml fsdp.update_at=reduce >log 2>err
ok "$([ $? != 0 ] && holds err 'optim.clip_grad_norm' && holds err 'clip_late'; echo $?)" "clipping by the step's own norm is refused by name"

"$BIN/fsdp-launch" -n 1 run.yaml optim.master=split >log 2>err
ok "$([ $? != 0 ] && holds err 'optim.master' && holds err 'bfloat16'; echo $?)" "there is nothing to split of fp32: it is said"
"$BIN/fsdp-launch" -n 1 run.yaml optim.name=sgd $narrow >log 2>err
ok "$([ $? != 0 ] && holds err 'optim.moment_dtype'; echo $?)" "nor has SGD moments"

echo "1..$n"
exit $bad
