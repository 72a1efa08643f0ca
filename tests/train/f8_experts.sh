#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Experts' products in 8 bits in whole runs: they learn as those in bf16 do; resumed, recomputed, unsharded and accumulated;
# with packed documents, evaluation and adapters; which names switch them on, and what is refused.
set -u
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/train.sh"

make_input
cat >run.yaml <<END
model: {path: qwen3_moe, init: random, seed: 1, linear_dtype: float8_e4m3, linear_targets: [all-linear, experts]}
data: {path: text, seq_len: 32}
train: {steps: 4, global_batch_size: 8, seed: 2, threads: 1}
optim: {lr: 3.0e-3, schedule: constant, warmup_steps: 2}
fsdp: {timeout: 60, param_dtype: bfloat16}
checkpoint: {interval: 4, fsync: false, switches: ''}
END
# Weights of each expert, (out, in); of all, (out, in) with gate and up in one; of all, (in, out) with biases.
mkdir qwen3_moe granitemoe gpt_oss
shape='"vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
 "num_experts_per_tok": 2, "rms_norm_eps": 1e-5, "tie_word_embeddings": false, "max_position_embeddings": 128'
cat >qwen3_moe/config.json <<END
{"model_type": "qwen3_moe", $shape, "head_dim": 16, "intermediate_size": 96, "moe_intermediate_size": 48, "num_experts": 6,
 "norm_topk_prob": true, "decoder_sparse_step": 1, "mlp_only_layers": [], "rope_theta": 10000.0}
END
cat >granitemoe/config.json <<END
{"model_type": "granitemoe", $shape, "intermediate_size": 48, "num_local_experts": 6}
END
cat >gpt_oss/config.json <<END
{"model_type": "gpt_oss", $shape, "head_dim": 16, "intermediate_size": 48, "num_local_experts": 6, "rope_theta": 10000.0,
 "sliding_window": 8, "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32,
 "beta_fast": 32, "beta_slow": 1, "truncate": true}}
END
loss() { sed -nE 's/.*"loss": ([^,]*),.*/\1/p' "$1"; }
last() { loss "$1" | tail -n "$2" | awk '{ s += $1 } END { print s / NR }'; }
# Is |a - b| at most this part of b?
near() { awk -v a="$1" -v b="$2" -v part="$3" 'BEGIN { d = a - b; exit !((d < 0 ? -d : d) <= part * b) }'; }
joined() { tr -s '\n ' ' ' <"$1"; }

# ---- it learns ------------------------------------------------------------------------------------

long="data.path=$TOP/LICENSE train.steps=40 train.global_batch_size=2 optim.lr=2.0e-3"
for model in qwen3_moe granitemoe gpt_oss; do
    run -n 1 run.yaml $long model.path=$model model.linear_dtype=auto log.metrics=bf16.jsonl &&
        run -n 1 run.yaml $long model.path=$model model.linear_targets=all-linear log.metrics=dense.jsonl
    ok "$([ $? = 0 ] && holds <(joined log) 'products in float8_e4m3, of experts in bfloat16'; echo $?)" \
        "$model: all-linear leaves experts as they are, which is told"
    run -n 1 run.yaml $long model.path=$model log.metrics=e4m3.jsonl
    ok "$([ $? = 0 ] && ! holds <(joined log) 'of experts in' && near "$(last e4m3.jsonl 20)" "$(last bf16.jsonl 20)" 0.01 &&
        ! cmp -s <(loss e4m3.jsonl) <(loss dense.jsonl); echo $?)" \
        "$model learns with experts in 8 bits: $(last e4m3.jsonl 20), bf16 $(last bf16.jsonl 20)"
    ok "$(awk -v a="$(loss e4m3.jsonl | head -1)" -v b="$(last e4m3.jsonl 5)" 'BEGIN { exit !(b < 0.8 * a) }'; echo $?)" \
        "$model: the loss falls to $(last e4m3.jsonl 5)"
done

# ---- the same bits --------------------------------------------------------------------------------

for model in qwen3_moe gpt_oss; do
    set -- -n 2 run.yaml model.path=$model
    run "$@" checkpoint.path=$model-whole log.metrics=$model.jsonl
    ok $? "$model: 2 ranks"
    run "$@" train.steps=2 checkpoint.path=$model-parts &&
        run "$@" checkpoint.path=$model-parts fsdp.activation_checkpointing=full
    ok "$([ $? = 0 ] && holds log "resumes from $model-parts/step-00000002" && same $model-whole/step-00000004 $model-parts/step-00000004; echo $?)" \
        "$model: resumed and recomputed: the same bits"
    for setting in fsdp.activation_checkpointing=selective fsdp.sharding_strategy=NO_SHARD; do
        run "$@" $setting checkpoint.path="$model-${setting##*=}"
        ok "$([ $? = 0 ] && same $model-whole/step-00000004 "$model-${setting##*=}/step-00000004"; echo $?)" \
            "$model: $setting: the same bits"
    done
    # Other divisions of the rows have other scales, and a row that two experts suit alike may go to the other one.
    run -n 1 run.yaml model.path=$model log.metrics=one.jsonl && run "$@" train.micro_batch_size=1 log.metrics=four.jsonl
    ok "$([ $? = 0 ] && near "$(last one.jsonl 4)" "$(last $model.jsonl 4)" 0.005 &&
        near "$(last four.jsonl 4)" "$(last $model.jsonl 4)" 0.005; echo $?)" \
        "$model: on 1 rank, and with 4 micro-steps: $(last one.jsonl 4), $(last four.jsonl 4), $(last $model.jsonl 4)"
done

# ---- with other parts -----------------------------------------------------------------------------

# Several documents in a row, evaluation, weights that travel in 8 bits, parameters in fp32.
awk '{ printf "{\"text\": \"%s\"}\n", $0 }' text >docs.jsonl
run -n 2 run.yaml data.path=docs.jsonl data.eval_path=text train.eval_interval=2 data.eval_rows=4 log.metrics=packed.jsonl
ok "$([ $? = 0 ] && holds packed.jsonl eval_loss; echo $?)" "packed documents, and evaluation"
run -n 2 run.yaml fsdp.gather_dtype=float8_e4m3 log.metrics=codes.jsonl
ok "$([ $? = 0 ] && near "$(last codes.jsonl 2)" "$(last qwen3_moe.jsonl 2)" 0.01; echo $?)" "weights that travel in 8 bits"
for model in qwen3_moe granitemoe gpt_oss; do
    set -- -n 2 run.yaml model.path=$model fsdp.gather_dtype=float8_e4m3
    run "$@" checkpoint.path=$model-codes && run "$@" checkpoint.path=$model-kept fsdp.sharding_strategy=NO_SHARD &&
        same $model-codes/step-00000004 $model-kept/step-00000004 &&
        run "$@" checkpoint.path=$model-thrice fsdp.activation_checkpointing=full train.steps=2 &&
        run "$@" checkpoint.path=$model-thrice && same $model-codes/step-00000004 $model-thrice/step-00000004
    ok $? "$model: held in codes by each rank, recomputed, resumed: the same bits"
done
run -n 2 run.yaml fsdp.param_dtype=float32 log.metrics=wide.jsonl
ok "$([ $? = 0 ] && near "$(last wide.jsonl 2)" "$(last qwen3_moe.jsonl 2)" 0.01; echo $?)" "parameters in fp32"
run -n 2 run.yaml model.linear_grad_dtype=float8_e5m2 log.metrics=e5m2.jsonl
ok "$([ $? = 0 ] && [ "$(loss e5m2.jsonl | head -1)" = "$(loss qwen3_moe.jsonl | head -1)" ] &&
    [ "$(loss e5m2.jsonl | tail -1)" != "$(loss qwen3_moe.jsonl | tail -1)" ]; echo $?)" "gradients in E5M2"

# Adapters of experts, and of attention: the matrices that they adapt are in 8 bits.
run -n 1 run.yaml train.steps=0 checkpoint.path=base-run && "$BIN/ckpt-merge" -q base-run -o base/ >>log 2>>err
lora=(model.path=base model.init=pretrained lora.r=4 optim.lr=1.0e-2
    'lora.target_parameters=[mlp.experts.gate_up_proj, mlp.experts.down_proj]')
run -n 2 run.yaml "${lora[@]}" checkpoint.path=lora log.metrics=lora.jsonl &&
    run -n 2 run.yaml "${lora[@]}" model.linear_dtype=auto log.metrics=lora16.jsonl
ok "$([ $? = 0 ] && near "$(last lora.jsonl 2)" "$(last lora16.jsonl 2)" 0.01 && ! cmp -s <(loss lora.jsonl) <(loss lora16.jsonl); echo $?)" \
    "adapters on experts in 8 bits: $(last lora.jsonl 2), bf16 $(last lora16.jsonl 2)"
run -n 2 run.yaml "${lora[@]}" train.steps=2 checkpoint.path=lora-parts && run -n 2 run.yaml "${lora[@]}" checkpoint.path=lora-parts
ok "$([ $? = 0 ] && same lora/step-00000004 lora-parts/step-00000004; echo $?)" "resumed: the same bits"

# ---- which maps -----------------------------------------------------------------------------------

first() { run -n 1 run.yaml train.steps=1 log.metrics=first.jsonl "$@" && loss first.jsonl; }
both=$(first model.linear_targets=experts) down=$(first model.linear_targets=experts.down_proj)
ok "$([ -n "$both" ] && [ -n "$down" ] && [ "$both" != "$down" ] && holds <(joined log) 'of some matrices of experts in bfloat16'; echo $?)" \
    "experts alone, and one of their matrices: $both, $down"
ok "$([ "$(first 'model.linear_targets=[mlp.experts.gate_up_proj, mlp.experts.down_proj]')" = "$both" ] &&
    [ "$(first model.linear_targets=mlp.experts)" = "$both" ]; echo $?)" "by the parameters' names, and by their module's"
refused() { # text, arguments
    local text="$1"
    shift
    run -n 2 run.yaml train.steps=1 "$@"
    ok "$([ $? != 0 ] && holds <(joined err) "$text" && ! holds log 'rank 0'; echo $?)" "refused: $text"
}
refused "model.linear_scales: products of experts (model.linear_targets has 'experts') have scales of kind tensor alone" model.linear_scales=row
refused "model.linear_scales: products of experts" model.linear_scales=block
refused "model.linear_targets: 'down_proj' is no linear map of the layers of qwen3_moe whose products can be in 8 bits" model.linear_targets=down_proj
refused "model.linear_targets: 'experts' is no linear map of the layers of llama" model.path=model
refused "model.linear_targets: 'mlp.gate' is no linear map of the layers of qwen3_moe" model.linear_targets=mlp.gate
run -n 1 run.yaml train.steps=1 model.linear_scales=row model.linear_targets=all-linear
ok $? "scales of rows without experts"

# The work that the plan counts: the matrices of 16 experts, 2 bytes for each element, are 1 MiB of it.
mkdir wide && sed 's/"num_experts": 6/"num_experts": 16/; s/"moe_intermediate_size": 48/"moe_intermediate_size": 512/' qwen3_moe/config.json >wide/config.json
workspace() { # settings: MiB
    run --dump-schedule -n 2 run.yaml model.path=wide "$@"
    sed -n 's/^ *activations, workspace *\([0-9.]*\) MiB$/\1/p' log
}
plain=$(workspace model.linear_targets=all-linear) f8=$(workspace)
ok "$(awk -v a="$plain" -v b="$f8" 'BEGIN { exit !(a > 0 && b > a + 1) }'; echo $?)" "the plan counts the codes: $plain, $f8 MiB"
unsharded() { # settings: KiB of unsharded parameters
    run --dump-schedule -n 2 run.yaml fsdp.gather_dtype=float8_e4m3 "$@"
    sed -n 's/^ *unsharded parameters, .* \([0-9.]*\) KiB$/\1/p' log
}
decoded=$(unsharded model.linear_targets=all-linear) codes=$(unsharded)
ok "$(awk -v a="$decoded" -v b="$codes" 'BEGIN { exit !(b > 0.5 * a && b < 0.9 * a) }'; echo $?)" \
    "gathered copies of experts are codes: $codes KiB, decoded $decoded"

echo "1..$n"
exit $bad
