#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A checkpoint of Megatron-Core 0.16 (dist_checkpointing, torch_dist; tests/data/megatron): two layers, four heads in two
# groups, saved with tensor parallelism 2. --map megatron-to-hf gives Llama's names, layer by layer.
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/tools.sh"
data=$TOP/tests/data/megatron
same() { run 0 ckpt-diff --model "$1" "$data/expected.safetensors" && says '21 tensors are the same, 0 near, 0 different'; }

run 0 ckpt-info "$data/torch_dist" && says decoder.layers.mlp.linear_fc1.weight && says '[2, 96, 32]'
ok $? "its layers are stacked: $(grep -c decoder out) tensors"
run 0 ckpt-merge "$data/torch_dist" -o unmapped --quiet && [ ! -e unmapped/metadata.json ] && run 0 ckpt-merge "$data/torch_dist" -o unmapped --overwrite && says '--map megatron-to-hf gives those of Hugging Face'
ok $? "without the map a line names it"
run 0 ckpt-merge "$data/torch_dist" -o merged --map megatron-to-hf --heads 4x2 --quiet && same merged
ok $? "merged under Hugging Face's names: $(tail -n 1 out)"
run 0 ckpt-merge "$data/torch_dist" -o little --map megatron-to-hf --heads 4x2 --mem 1M --quiet && same little
ok $? "in little memory"
run 0 ckpt-merge "$data/torch_dist" -o half --map megatron-to-hf --heads 4x2 --dtype bfloat16 --quiet &&
    run 0 ckpt-diff --model --any-dtype half "$data/expected.safetensors"
ok $? "in bfloat16"
run 0 ckpt-reshard "$data/torch_dist" -o native --world 3 --map megatron-to-hf --heads 4x2 --quiet && same native && run 0 ckpt-verify native
ok $? "for three ranks of ours: $(tail -n 1 out)"

run 0 ckpt-reshard "$data/torch_dist" -o dcp --world 2 --format dcp --map megatron-to-hf --heads 4x2 --quiet && same dcp
ok $? "for torch.distributed.checkpoint: $(tail -n 1 out)"

cp -r "$data/torch_dist" served
cat >served/config.json <<'END'
{"model_type": "llama", "vocab_size": 60, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
END
run 0 ckpt-merge served -o cut --map megatron-to-hf --quiet && run 0 ckpt-info cut && says '[60, 32]' &&
    "$BIN/fsdp-generate" --device cpu --model cut --tokens 5,6,7 --logits >logits 2>err
ok $? "config.json says how many heads and tokens there are; the model runs"
sed -i 's/"vocab_size": 60/"vocab_size": 65/' served/config.json
run 1 ckpt-merge served -o never --map megatron-to-hf && says 'has 64 rows, and config.json a vocabulary of 65'
ok $? "more tokens than rows: $(tail -n 1 err)"
run 1 ckpt-merge "$data/torch_dist" -o never --map megatron-to-hf && says 'give them (--heads 32x8'
ok $? "without heads: $(tail -n 1 err)"
run 1 ckpt-merge "$data/torch_dist" -o never --map megatron-to-hf --heads 5x2 && says 'wrong --heads?'
ok $? "with wrong ones: $(tail -n 1 err)"
printf '%s\n' 'decoder.final_layernorm.weight -> decoder.final_layernorm.scale' >map
run 1 ckpt-merge "$data/torch_dist" -o never --map map --map megatron-to-hf --heads 4x2 && says "'decoder.final_layernorm.scale' has no counterpart"
ok $? "an unknown tensor: $(tail -n 1 err)"

# ---- the older folders, one for each rank (laid out by a script: the names and parts of Megatron-Core's own model) ----------

run 0 ckpt-merge "$data/mp_rank" -o older --map megatron-to-hf --heads 4x2 --quiet && same older
ok $? "mp_rank_*: the parts of two ranks are joined: $(tail -n 1 out)"
run 0 ckpt-verify "$data/mp_rank" && run 0 ckpt-info "$data/mp_rank/iter_0000007" && says 'step         7' && says 'format       megatron'
ok $? "verified, and by the folder of the iteration"
cp -r "$data/mp_rank" lost && chmod -R u+w lost
mv lost/iter_0000007/mp_rank_01 lost/iter_0000007/mp_rank_02
run 1 ckpt-merge lost -o never && says "there are folders of fewer ranks: some are missing"
ok $? "a rank that is missing: $(tail -n 1 err)"
rm -r lost/iter_0000007/mp_rank_02
run 1 ckpt-merge lost -o never && says "was saved by 2 tensor ranks in 1 stages, and there are folders of 1 in 1"
ok $? "and the last one: $(tail -n 1 err)"
run 0 ckpt-merge "$data/mp_rank_stages" -o stages --map megatron-to-hf --heads 4x2 --quiet && same stages
ok $? "two stages of two ranks: layers have their numbers in the whole model"
cp -r "$data/mp_rank_stages" lost-stage && chmod -R u+w lost-stage && rm -r lost-stage/mp_rank_01_000
run 1 ckpt-merge lost-stage -o never && says "the folder of tensor rank 1 of 2, stage 0 of 2, is missing"
ok $? "a rank of a stage that is missing: $(tail -n 1 err)"
mkdir -p staged/mp_rank_00_000 staged/mp_rank_00_001_000
run 1 ckpt-merge staged -o never && says "a rank of expert parallelism, which is not read"
ok $? "experts by rank: $(tail -n 1 err)"

echo "1..$n"
exit $bad
