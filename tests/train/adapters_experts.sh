#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Adapters on the weights of experts without Python (tests/interop/adapters_experts.sh compares them with PEFT): what a run
# trains and saves, resumption on other ranks, merging, and what is refused.
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/train.sh"
make_input
mkdir mixtral gpt_oss
cat >mixtral/config.json <<'END'
{"model_type": "mixtral", "vocab_size": 256, "hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 2,
 "num_attention_heads": 2, "num_key_value_heads": 2, "num_local_experts": 5, "num_experts_per_tok": 2}
END
# Whose matrices of down_proj are as wide as high.
cat >gpt_oss/config.json <<'END'
{"model_type": "gpt_oss", "vocab_size": 256, "hidden_size": 24, "intermediate_size": 24, "num_hidden_layers": 2,
 "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 12, "num_local_experts": 5, "num_experts_per_tok": 2,
 "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "sliding_window": 8,
 "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 32,
                  "beta_slow": 1, "truncate": true}}
END
cat >run.yaml <<'END'
model: {path: base}
lora: {r: 2, alpha: 8, targets: [], target_parameters: [gate_up_proj, mlp.experts.down_proj]}
data: {path: text, seq_len: 32}
train: {steps: 6, global_batch_size: 6, micro_batch_size: 1}
optim: {lr: 1.0e-2, schedule: constant}
checkpoint: {path: ck, interval: 3, switches: ''}
log: {metrics: metrics.jsonl, progress: plain}
END
base() { # MODEL: the folder base.MODEL of random weights
    run -n 1 run.yaml lora.r=0 model.path=$1 model.init=random train.steps=0 checkpoint.path=ck.$1 lora.target_parameters= &&
        "$BIN/ckpt-merge" -q ck.$1 -o base.$1/ >>log 2>>err
}
base mixtral && base gpt_oss && ln -s base.mixtral base
ok $? "models to begin with"

run -n 2 -v run.yaml
ok $? "two ranks train adapters of experts alone"
# Of each layer A (5 r, 32) and (5 r, 24), B (48, 5 r) and (32, 5 r).
ok "$(holds log '2,720 parameters are trained' || holds log '2720 parameters are trained'; echo $?)" "the screen says how many"
"$BIN/ckpt-info" ck >log 2>err
ok "$(holds log model.layers.1.mlp.experts.base_layer.lora_B.weight && holds log model.layers.0.mlp.experts.lora_A.weight &&
    ! holds log block_sparse_moe; echo $?)" "the checkpoint has them by PEFT's names"
grep -A 3 target_parameters ck/step-00000006/hf/adapter_config.json | tr -d ' \n' >names
ok "$(holds names '["mlp.experts.gate_up_proj","mlp.experts.down_proj"]' &&
    holds ck/step-00000006/hf/adapter_config.json '"target_modules": []'; echo $?)" "and PEFT's configuration of them"
losses() { sed -n 's/.*"step": \([456]\),.*"loss": \([0-9.]*\).*/\1 \2/p' "$1" | awk '{ printf "%s %.4f\n", $1, $2 }'; }
alike() { [ "$(losses "$1" | wc -l)" = 3 ] && [ "$(losses "$1")" = "$(losses metrics.jsonl)" ]; }
mkdir half && cp -r ck/step-00000003 half/
run -n 3 run.yaml checkpoint.path=half log.metrics=half.jsonl && alike half.jsonl
ok $? "three ranks resume at step 3, with the same losses"
"$BIN/ckpt-reshard" -q ck/step-00000003 -o four/step-00000003 --world 4 >log 2>err &&
    run -n 4 run.yaml checkpoint.path=four log.metrics=four.jsonl --nodes 2 fsdp.sharding_strategy=hybrid_shard &&
    alike four.jsonl
ok $? "resharded, four ranks of two nodes do"
run -n 1 run.yaml checkpoint.path= train.micro_batch_size=6 fsdp.activation_checkpointing=full log.metrics=whole.jsonl &&
    alike whole.jsonl
ok $? "so does a run of one micro-batch with activation checkpointing"
run -n 2 run.yaml checkpoint.path= lora.path=ck/step-00000003/hf lora.r=0 train.steps=3 log.metrics=again.jsonl
ok "$([ $? = 0 ] && holds log 'adapters of ck/step-00000003/hf'; echo $?)" "PEFT's files begin a run"
run -n 2 run.yaml checkpoint.path= fsdp.param_dtype=bfloat16 log.metrics=bf16.jsonl
ok "$([ $? = 0 ] && [ "$(losses bf16.jsonl | wc -l)" = 3 ]; echo $?)" "in bf16"

# ---- merging ----
merged() { # MODEL: a run's adapters of it, merged and not
    rm -rf ck.low merged
    run -n 2 run.yaml model.path=base.$1 checkpoint.path=ck.low lora.targets=[q_proj] && rm -rf merged &&
        "$BIN/ckpt-merge" -q --adapter ck.low base.$1 -o merged/ >>log 2>>err &&
        "$BIN/fsdp-generate" --model merged --tokens 1,2,3 --logits >merged.logits 2>>err &&
        "$BIN/fsdp-generate" --model base.$1 --adapter ck.low --tokens 1,2,3 --logits >with.logits 2>>err &&
        "$BIN/fsdp-generate" --model base.$1 --tokens 1,2,3 --logits >without.logits 2>>err &&
        cmp merged.logits with.logits && ! cmp -s merged.logits without.logits
}
for model in mixtral gpt_oss; do
    merged $model
    ok $? "$model: merged, it gives the logits of the model with the adapter"
    run -n 1 run.yaml model.path=merged checkpoint.path= train.steps=7 lora.alpha=1e-9 optim.lr=0 log.metrics=merged.jsonl &&
        run -n 1 run.yaml model.path=base.$model checkpoint.path=ck.low lora.targets=[q_proj] train.steps=7 optim.lr=0 log.metrics=low.jsonl
    seventh() { sed -n 's/.*"step": 7,.*"loss": \([0-9]*\.[0-9]\{4\}\).*/\1/p' "$1"; }
    ok "$([ -n "$(seventh low.jsonl)" ] && [ "$(seventh low.jsonl)" = "$(seventh merged.jsonl)" ]; echo $?)" \
        "$model: and a run on it has the loss of the run with adapters"
done
# Whose columns of gate and up are apart in GGUF.
mkdir with && cp -r merged with/base.gpt_oss && cp "$TOP/examples/llama-tiny/tokenizer.json" with/base.gpt_oss/ &&
    cp "$TOP/examples/llama-tiny/tokenizer.json" base.gpt_oss/ &&
    "$BIN/ckpt-merge" -q with/base.gpt_oss -o merged.gguf --type f32 >log 2>err &&
    "$BIN/ckpt-merge" -q --adapter ck.low base.gpt_oss -o with.gguf --type f32 >>log 2>>err &&
    cmp merged.gguf with.gguf >>log 2>>err
ok $? "gpt_oss: merged into a file for llama.cpp, too"
"$BIN/ckpt-merge" --adapter ck base.gpt_oss -o wrong >log 2>err
ok "$([ $? != 0 ] && holds err 'does not belong to'; echo $?)" "not into another model"

cp -r ck/step-00000006/hf wide && sed -i 's/"r": 2/"r": 64/' wide/adapter_config.json
"$BIN/ckpt-merge" --adapter wide base.mixtral -o wrong >log 2>err
ok "$([ $? = 1 ] && holds err 'has another shape there than lora_A and lora_B fit'; echo $?)" "nor with a rank over what lora_A has"

# ---- in 4 bits ----
packed=(lora.base=nf4-experts fsdp.param_dtype=bfloat16 checkpoint.path=)
alike_packed() { [ "$(losses "$1" | wc -l)" = 3 ] && [ "$(losses "$1")" = "$(losses packed.jsonl)" ]; }
for model in mixtral gpt_oss; do
    run -n 1 -v run.yaml model.path=base.$model "${packed[@]}" checkpoint.path=ck4.$model log.metrics=packed.jsonl
    ok "$([ $? = 0 ] && tr -s ' \n' ' ' <log | grep -q 'on a model in NF4 with its experts'; echo $?)" "$model: one rank trains on experts in NF4"
    # Of two layers: attention, and 5 experts of 3 matrices; 4.125 bits each, and 4 bytes a tensor and 16,384 elements.
    case $model in
    mixtral) nelem=$((2 * (4 * 32 * 32 + 5 * 3 * 32 * 24))) ;;
    gpt_oss) nelem=$((2 * (4 * 24 * 24 + 5 * 3 * 24 * 24))) ;;
    esac
    kib=$(sed -n 's/.*frozen parameter shards, NF4  *\([0-9.]*\) KiB.*/\1/p' log)
    ok "$(awk -v kib="$kib" -v n=$nelem 'BEGIN { least = n * 4.125 / 8 / 1024; exit !(kib >= least && kib <= 1.1 * least + 3 * 4) }'; echo $?)" \
        "$model: the plan has them in 4.13 bits: $kib KiB"
    run -n 2 run.yaml model.path=base.$model "${packed[@]}" log.metrics=two.jsonl fsdp.activation_checkpointing=full &&
        alike_packed two.jsonl
    ok $? "$model: two ranks have the same losses"
    run -n 2 run.yaml model.path=base.$model "${packed[@]}" lora.base=auto log.metrics=two.jsonl && ! alike_packed two.jsonl
    ok $? "$model: and others on the model as it is"
done
run -n 1 run.yaml model.path=base.gpt_oss "${packed[@]}" checkpoint.path=ck4.gpt_oss train.steps=7 lora.base=nf4
ok "$([ $? != 0 ] && holds err 'were trained with nf4-experts, and it is nf4 now'; echo $?)" "experts are no more so in a resumed run"

# ---- what is refused ----
refused() { # text, options
    run -n 1 run.yaml checkpoint.path= "${@:2}"
    ok "$([ $? != 0 ] && holds err "$1"; echo $?)" "refused: $1"
}
refused 'lora.dropout: adapters of experts (lora.target_parameters) and of their router have none' lora.dropout=0.1
refused 'lora.dora: adapters of experts (lora.target_parameters) and of their router have none' lora.dora=true
refused "lora.target_parameters: 'w1' is no parameter of the experts of mixtral: mlp.experts.gate_up_proj and mlp.experts.down_proj are" lora.target_parameters=[w1]
refused "'model.layers.1.mlp.experts.down_proj' is a parameter of one layer" lora.target_parameters=[model.layers.1.mlp.experts.down_proj]
refused 'lora.targets: names no linear map, nor lora.target_parameters' lora.target_parameters=
refused 'lora.target_parameters: has not mlp.experts.down_proj, and the adapter of lora.path has' \
    lora.path=ck lora.r=0 lora.target_parameters=[gate_up_proj]
run -n 1 run.yaml lora.r=0 lora.targets=all-linear lora.target_parameters= model.path=model model.init=random train.steps=0 checkpoint.path=ck0 &&
    "$BIN/ckpt-merge" -q ck0 -o dense/ >>log 2>>err
refused "lora.target_parameters: 'gate_up_proj': llama has no experts" model.path=dense
refused 'lora.base: dense/config.json: a llama has no experts: set it to nf4' model.path=dense lora.base=nf4-experts \
    lora.targets=all-linear lora.target_parameters=
refused 'lora.target_parameters: tensor model.layers.0.mlp.experts.base_layer' checkpoint.path=ck train.steps=7 lora.target_parameters=[down_proj]
cp -r ck/step-00000006/hf other
sed -i 's/mlp.experts.down_proj/self_attn.q_proj.weight/' other/adapter_config.json
refused "has mlp.experts.down_proj, and the adapter of lora.path has not" lora.path=other lora.r=0
sed -i 's/self_attn.q_proj.weight/mlp.experts.down_proj/; s/"use_dora": false/"use_dora": true/' other/adapter_config.json
refused 'use_dora is true, and target_parameters have no magnitudes' lora.path=other lora.r=0
echo "1..$n"
exit $bad
