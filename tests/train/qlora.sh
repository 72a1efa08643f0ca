#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Adapters on a model in NF4 without Python (tests/interop/qlora.sh compares them with bitsandbytes and PEFT): memory, the
# same losses on any number of ranks, resumption, what is merged, and what is refused.
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/train.sh"
make_input
cat >run.yaml <<'END'
model: {path: base}
lora: {r: 4, alpha: 8, base: nf4}
data: {path: text, seq_len: 32}
train: {steps: 6, global_batch_size: 12, micro_batch_size: 1}
optim: {lr: 1.0e-2, schedule: constant}
fsdp: {param_dtype: bfloat16}
checkpoint: {path: '', switches: ''}
log: {metrics: metrics.jsonl, progress: plain}
END
run -n 1 run.yaml lora.r=0 lora.base=auto model.path=model model.init=random train.steps=0 checkpoint.path=ck0 &&
    "$BIN/ckpt-merge" -q ck0 -o base/ >>log 2>>err
ok $? "a model to begin with"

losses() { sed -n 's/.*"step": \([0-9]*\),.*"loss": \([0-9.]*\).*/\1 \2/p' "$1" | awk '{ printf "%s %.4f\n", $1, $2 }'; }
run -n 1 -v run.yaml log.metrics=one.jsonl checkpoint.path=ck checkpoint.interval=3
ok "$([ "$(losses one.jsonl | wc -l)" = 6 ]; echo $?)" "one rank trains"
ok "$(holds log '9,344 parameters are trained, on a model in NF4'; echo $?)" "the screen says on what"
# Two layers of 45,056 elements: 4.125 bits each, and 4 bytes a tensor and 16,384 elements; in whole pages.
kib=$(sed -n 's/.*frozen parameter shards, NF4  *\([0-9.]*\) KiB.*/\1/p' log)
ok "$(awk -v kib="$kib" 'BEGIN { least = 2 * 45056 * 4.125 / 8 / 1024; exit !(kib >= least && kib <= least + 3 * 4) }'; echo $?)" \
    "the plan has them in 4.13 bits: $kib KiB"
same_losses() { # ranks, options
    rm -f other.jsonl
    run -n "$@" log.metrics=other.jsonl
    ok "$([ "$(losses other.jsonl)" = "$(losses one.jsonl)" ]; echo $?)" "the same losses: $*"
}
same_losses 3 run.yaml
same_losses 2 run.yaml fsdp.sharding_strategy=NO_SHARD
same_losses 2 run.yaml fsdp.sharding_strategy=SHARD_GRAD_OP fsdp.activation_checkpointing=full
same_losses 4 --nodes 2 run.yaml fsdp.sharding_strategy=HYBRID_SHARD fsdp.wrap_policy=none
same_losses 4 --nodes 2 run.yaml fsdp.two_level=true fsdp.activation_checkpointing=selective
same_losses 2 run.yaml fsdp.reshard_after_forward=2 fsdp.offload=optimizer
run -n 1 run.yaml lora.dora=true log.metrics=dora.jsonl
run -n 3 run.yaml lora.dora=true log.metrics=dora3.jsonl fsdp.activation_checkpointing=full
ok "$([ "$(losses dora.jsonl | wc -l)" = 6 ] && [ "$(losses dora.jsonl)" = "$(losses dora3.jsonl)" ] &&
    [ "$(losses dora.jsonl)" != "$(losses one.jsonl)" ]; echo $?)" "with magnitudes (DoRA) others, the same on one rank and three"
rm -f other.jsonl
run -n 1 run.yaml lora.base=auto log.metrics=other.jsonl
ok "$([ -n "$(losses other.jsonl)" ] && [ "$(losses other.jsonl)" != "$(losses one.jsonl)" ]; echo $?)" "and others with the model as it is"

mkdir half && cp -r ck/step-00000003 half/
run -n 3 run.yaml checkpoint.path=half log.metrics=half.jsonl
ok "$([ "$(losses half.jsonl | wc -l)" = 3 ] && [ "$(losses half.jsonl)" = "$(losses one.jsonl | tail -n 3)" ]; echo $?)" \
    "three ranks resume at step 3, with the same losses"
"$BIN/ckpt-merge" -q --adapter ck base -o merged/ >log 2>err &&
    "$BIN/fsdp-generate" --model merged --tokens 1,2,3 --logits >a 2>err && "$BIN/fsdp-generate" --model base --adapter ck --tokens 1,2,3 --logits >b 2>err
ok "$([ -s a ] && cmp -s a b; echo $?)" "the adapter is merged into the model as it is stored"

# ---- what is refused ----
refused() { # text, options
    local text=$1
    shift
    run -n 2 run.yaml "$@"
    ok "$([ $? != 0 ] && holds err "$text"; echo $?)" "refused: $*"
}
refused 'lora.base: the adapters of ck/step-00000006 were trained with nf4, and it is auto now' checkpoint.path=ck train.steps=7 lora.base=auto
refused 'lora.base: nf4 is for a model that is frozen' lora.r=0
refused 'fsdp.offload: parameters that are gathered as NF4 cannot be offloaded' fsdp.offload=params
cp -r base changed
printf '\001' | dd of=changed/model.safetensors bs=1 seek=$(($(stat -c %s base/model.safetensors) - 3)) conv=notrunc 2>/dev/null
refused 'is not the model that the adapters of ck/step-00000006 were trained on' checkpoint.path=ck train.steps=7 model.path=changed
mkdir gpt2
cat >gpt2/config.json <<'END'
{"model_type": "gpt2", "vocab_size": 256, "n_embd": 24, "n_layer": 2, "n_head": 2, "n_positions": 64}
END
refused 'a gpt2 has matrices of (in, out), which are not held in NF4 here' model.path=gpt2
mkdir packed
sed 's/^{/{"quantization_config": {"quant_method": "bitsandbytes", "bnb_4bit_quant_type": "nf4"},/' base/config.json >packed/config.json
refused 'lora.base: packed/config.json: the model is quantized by bitsandbytes: set it to nf4' model.path=packed lora.base=auto
sed 's/^{/{"quantization_config": {"quant_method": "bitsandbytes", "bnb_4bit_quant_type": "fp4"},/' base/config.json >packed/config.json
refused 'quantization_config is set; of quantized models those of bitsandbytes in NF4 are read' model.path=packed
echo "1..$n"
exit $bad
