#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Products in 8 bits in whole runs: they learn as those in bf16 do; resumed, recomputed and unsharded
# they have the same bits; which maps they are for, and what is refused.
set -u
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/train.sh"

make_input
cat >run.yaml <<END
model: {path: model, init: random, seed: 1, linear_dtype: float8_e4m3}
data: {path: text, seq_len: 32}
train: {steps: 4, global_batch_size: 8, seed: 2, threads: 1}
optim: {lr: 3.0e-3, schedule: constant, warmup_steps: 2}
fsdp: {timeout: 60, param_dtype: bfloat16}
checkpoint: {interval: 4, fsync: false}
END
loss() { sed -nE 's/.*"loss": ([^,]*),.*/\1/p' "$1"; }
# Mean loss of the last lines.
last() { loss "$1" | tail -n "$2" | awk '{ s += $1 } END { print s / NR }'; }
# Is |a - b| at most this part of b?
near() { awk -v a="$1" -v b="$2" -v part="$3" 'BEGIN { d = a - b; exit !((d < 0 ? -d : d) <= part * b) }'; }

# ---- it learns ------------------------------------------------------------------------------------

# On prose that does not change: of lines that differ in numbers alone, losses are small after so many steps, and runs in
# bf16 that divide their rows otherwise differ by a tenth.
long="model.path=$TOP/examples/llama-2m data.path=$TOP/LICENSE train.steps=60 train.global_batch_size=2 optim.lr=1.0e-3"
run -n 1 run.yaml $long model.linear_dtype=auto log.metrics=bf16.jsonl && run -n 1 run.yaml $long log.metrics=e4m3.jsonl
ok $? "60 steps, in bf16 and in 8 bits"
bf16=$(last bf16.jsonl 40) f8=$(last e4m3.jsonl 40)
ok "$(awk -v a="$(last bf16.jsonl 10)" 'BEGIN { exit !(a < 4) }'; echo $?)" "the model learns: $bf16"
ok "$(near "$f8" "$bf16" 0.005 && [ "$(loss e4m3.jsonl | head -1)" != "$(loss bf16.jsonl | head -1)" ]; echo $?)" \
    "in 8 bits as in bf16: $f8"

# ---- the same bits --------------------------------------------------------------------------------

# 2 ranks: whole, resumed, recomputed, without sharding, accumulated.
run -n 2 run.yaml checkpoint.path=whole log.metrics=whole.jsonl
ok "$([ $? = 0 ] && holds log 'parameters bfloat16, products in float8_e4m3'; echo $?)" "2 ranks"
run -n 2 run.yaml train.steps=2 checkpoint.path=parts && run -n 2 run.yaml checkpoint.path=parts
ok "$([ $? = 0 ] && holds log 'resumes from parts/step-00000002' && same whole/step-00000004 parts/step-00000004; echo $?)" \
    "resumed: the same bits"
for setting in fsdp.activation_checkpointing=full fsdp.activation_checkpointing=selective fsdp.sharding_strategy=NO_SHARD; do
    run -n 2 run.yaml $setting checkpoint.path="${setting##*=}"
    ok "$([ $? = 0 ] && same whole/step-00000004 "${setting##*=}/step-00000004"; echo $?)" "$setting: the same bits"
done

# Scales of rows and of blocks of 32: each learns, has bits of its own, and keeps them when it is resumed.
for scales in row block; do
    run -n 1 run.yaml $long model.linear_scales=$scales log.metrics=$scales.jsonl
    ok "$([ $? = 0 ] && near "$(last $scales.jsonl 40)" "$bf16" 0.005 && ! cmp -s <(loss $scales.jsonl) <(loss e4m3.jsonl); echo $?)" \
        "scales of kind $scales: $(last $scales.jsonl 40)"
    run -n 2 run.yaml model.linear_scales=$scales checkpoint.path=$scales-whole
    ok "$([ $? = 0 ] && holds <(tr -s '\n ' ' ' <log) "products in float8_e4m3 with scales of ${scales}s"; echo $?)" "which is told"
    run -n 2 run.yaml model.linear_scales=$scales train.steps=2 checkpoint.path=$scales-parts &&
        run -n 2 run.yaml model.linear_scales=$scales checkpoint.path=$scales-parts fsdp.activation_checkpointing=full
    ok "$([ $? = 0 ] && same $scales-whole/step-00000004 $scales-parts/step-00000004; echo $?)" "resumed and recomputed: the same bits"
done
ok "$(cmp -s <(loss row.jsonl) <(loss block.jsonl); echo $((! $?)))" "rows and blocks have losses of their own"

# Other divisions of the rows have other scales, on which the values of small elements alone depend.
run -n 1 run.yaml log.metrics=one.jsonl && run -n 2 run.yaml train.micro_batch_size=1 log.metrics=four.jsonl
ok $? "1 rank, and 2 with 4 micro-steps"
for other in one four; do
    far=$(paste <(loss whole.jsonl) <(loss $other.jsonl) |
        awk '{ d = ($1 - $2) / $2; d = d < 0 ? -d : d; if (d > most) most = d } END { print most + 0 }')
    ok "$(awk -v d="$far" 'BEGIN { exit !(d < 2e-3) }'; echo $?)" "$other: losses are off by a part of $far"
done

# ---- weights that travel in codes -----------------------------------------------------------------

# In fp32, products round the masters as a gather does, so that its codes make the same bits. What is
# not a layer's map is left as it is. Of one rank and of 2, kept in part, with evaluations.
rest=(fsdp.param_dtype=float32 'fsdp.unit_overrides=[model.embed_tokens gather_codec=false, lm_head gather_codec=false]'
    data.eval_path=text train.eval_interval=2 data.eval_rows=4)
run -n 2 run.yaml "${rest[@]}" checkpoint.path=masters log.metrics=masters.jsonl &&
    run -n 2 run.yaml "${rest[@]}" fsdp.gather_dtype=float8_e4m3 checkpoint.path=codes log.metrics=codes.jsonl
ok "$([ $? = 0 ] && same masters/step-00000004 codes/step-00000004 && cmp -s <(numbers masters.jsonl) <(numbers codes.jsonl); echo $?)" \
    "weights that travel in codes: the bits of products that round masters"
run -n 2 run.yaml "${rest[@]}" fsdp.gather_dtype=float8_e4m3 fsdp.sharding_strategy=NO_SHARD checkpoint.path=kept
ok "$([ $? = 0 ] && same masters/step-00000004 kept/step-00000004; echo $?)" "held in codes by each rank: the same bits"
unsharded() { # settings: type and MiB
    run --dump-schedule -n 2 run.yaml "model.path=$TOP/examples/llama-2m" fsdp.gather_dtype=float8_e4m3 "$@"
    sed -n 's/^ *unsharded parameters, \(.*[^ ]\)  *\([0-9.]*\) MiB$/\1: \2/p' log
}
decoded=$(unsharded model.linear_dtype=auto) codes=$(unsharded)
ok "$(awk -v a="${decoded#BF16: }" -v b="${codes#BF16 and F8_E4M3: }" 'BEGIN { exit !(b > 0.5 * a && b < 0.9 * a) }'; echo $?)" \
    "the plan's gathered copies: $decoded, $codes MiB"

# Scales of rows are not those that travelled: weights are decoded, and rounded again without a loss.
rows=$(unsharded model.linear_scales=row)
ok "$([ -n "$rows" ] && [ "$rows" = "$decoded" ]; echo $?)" "with scales of rows, weights that travel in codes are decoded: $rows MiB"
run -n 2 run.yaml model.linear_scales=row fsdp.gather_dtype=float8_e4m3 log.metrics=row_codes.jsonl
ok "$([ $? = 0 ] && near "$(last row_codes.jsonl 2)" "$(last whole.jsonl 2)" 0.01; echo $?)" "which trains"

# ---- which maps -----------------------------------------------------------------------------------

run -n 1 run.yaml train.steps=1 'model.linear_targets=[mlp.down_proj, o_proj]' log.metrics=some.jsonl
ok "$([ $? = 0 ] && [ "$(loss some.jsonl)" != "$(loss one.jsonl | head -1)" ]; echo $?)" "of some maps alone"
run -n 1 run.yaml model.linear_grad_dtype=float8_e5m2 log.metrics=e5m2.jsonl
ok "$([ $? = 0 ] && [ "$(loss e5m2.jsonl | head -1)" = "$(loss one.jsonl | head -1)" ] &&
    [ "$(loss e5m2.jsonl | tail -1)" != "$(loss one.jsonl | tail -1)" ] &&
    near "$(loss e5m2.jsonl | tail -1)" "$(loss one.jsonl | tail -1)" 0.01; echo $?)" "gradients in E5M2"
run -n 1 run.yaml 'model.linear_targets=[lm_head]'
ok "$([ $? != 0 ] && holds err "model.linear_targets: 'lm_head' is no linear map of the layers of llama"; echo $?)" \
    "the head is refused"
run -n 1 run.yaml train.steps=1 model.linear_dtype=auto 'model.linear_targets=[down_proj]'
ok "$([ $? = 0 ] && holds err model.linear_targets; echo $?)" "targets without the type have no effect, which is told"

run -n 1 run.yaml train.steps=1 model.linear_dtype=auto model.linear_scales=block
ok "$([ $? = 0 ] && holds err model.linear_scales; echo $?)" "nor have scales"

run -n 1 run.yaml train.steps=1 'model.linear_targets=[]'
ok "$([ $? != 0 ] && holds err 'linear_targets: the list is empty'; echo $?)" "an empty list of maps is refused"

# Matrices the other way round, one for q, k and v; and a mixture, whose experts stay as they are.
mkdir gpt2 mixture
echo '{"model_type": "gpt2", "vocab_size": 256, "n_positions": 64, "n_embd": 64, "n_layer": 2, "n_head": 4,
    "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}' >gpt2/config.json
echo '{"model_type": "mixtral", "vocab_size": 256, "hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "num_local_experts": 4,
    "num_experts_per_tok": 2, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false}' >mixture/config.json
for model in gpt2 mixture; do
    run -n 2 run.yaml model.path=$model log.metrics=$model.jsonl && run -n 2 run.yaml model.path=$model model.linear_dtype=auto log.metrics=plain.jsonl
    ok "$([ $? = 0 ] && near "$(last $model.jsonl 2)" "$(last plain.jsonl 2)" 0.01 && ! cmp -s <(loss $model.jsonl) <(loss plain.jsonl); echo $?)" \
        "$model: near bf16"
done

# The work that the plan counts: operands and codes of the largest two matrices of a product.
workspace() { # settings: MiB
    run --dump-schedule -n 2 run.yaml "model.path=$TOP/examples/llama-2m" data.seq_len=512 train.global_batch_size=8 train.micro_batch_size=4 "$@"
    sed -n 's/^ *activations, workspace *\([0-9.]*\) MiB$/\1/p' log
}
plain=$(workspace model.linear_dtype=auto) f8=$(workspace)
ok "$(awk -v a="$plain" -v b="$f8" 'BEGIN { exit !(a > 0 && b > 1.3 * a && b < 2 * a) }'; echo $?)" "the plan counts the codes: $plain, $f8 MiB"

echo "1..$n"
exit $bad
