#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Checkpoints of DeepSpeed 0.19 (tests/data/deepspeed-*): ZeRO-1 of a tied model, ZeRO-3 with frozen parameters, both of
# 2 ranks in bf16. Weights are those of its zero_to_fp32.py, moments those of its flat vectors. A run resumes from one.
# Files that are missing, of another run or damaged are refused by name.
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/tools.sh"
z1=$TOP/tests/data/deepspeed-z1-2r z3=$TOP/tests/data/deepspeed-z3-2r-frozen
moments() { # checkpoint, reference
    run 0 ckpt-diff --include '*.exp_avg*' "$1" "$2/expected-adamw.safetensors" && says " 0 different"
}

run 0 ckpt-diff --model --exclude lm_head.weight "$z1/ckpt" "$z1/expected.safetensors" && says '28 tensors are the same, 0 near, 0 different'
ok $? "ZeRO-1: $(tail -n 1 out)"
moments "$z1/ckpt" "$z1"
ok $? "and its moments: $(tail -n 1 out)"
run 0 ckpt-info "$z1/ckpt" && says 'tied         lm_head.weight = model.embed_tokens.weight' && says 'format       deepspeed' && says 'step         3'
ok $? "its other name for the embedding"
run 0 ckpt-diff --model --any-dtype "$z3/ckpt" "$z3/expected.safetensors" && says '21 tensors are the same, 0 near, 0 different'
ok $? "ZeRO-3: $(tail -n 1 out)"
moments "$z3/ckpt" "$z3"
ok $? "and its moments: $(tail -n 1 out)"
for kept in z1 z3; do
    run 0 ckpt-merge --all "${!kept}/ckpt" -o $kept.safetensors --quiet && run 0 ckpt-diff ${!kept}/ckpt $kept.safetensors
    ok $? "$kept merged, with all of it: $(tail -n 1 out)"
    run 0 ckpt-reshard "${!kept}/ckpt/global_step3" -o $kept --world 3 --quiet && run 0 ckpt-diff $kept "${!kept}/ckpt" && run 0 ckpt-verify $kept
    ok $? "and for 3 ranks: $(tail -n 1 out)"
    run 0 ckpt-reshard "${!kept}/ckpt" -o $kept-dcp --world 2 --format dcp --quiet && run 0 ckpt-diff --exclude '*.step' $kept-dcp "${!kept}/ckpt"
    ok $? "and for torch.distributed.checkpoint: $(tail -n 1 out)"
    run 0 ckpt-verify "${!kept}/ckpt" && says "each archive's checksum is right"
    ok $? "verified: $(tail -n 1 out)"
done
mkdir trainer
cp -r "$z1"/ckpt/* trainer/
echo '{"model_type": "llama"}' >trainer/config.json
run 0 ckpt-merge trainer -o served --quiet && cmp -s served/config.json trainer/config.json
ok $? "config.json of the folder above goes along"

# The model states with classes of a user's own in the client state, made by torch.save: what is not needed is not read.
mkdir client
cp "$z1"/ckpt/global_step3/* client/
cp -f "$z1/client_model_states.pt" client/mp_rank_00_model_states.pt
run 0 ckpt-diff "$z1/ckpt" client
ok $? "settings of a user's own are no obstacle: $(tail -n 1 out)"

# ---- a run resumes -------------------------------------------------------------------------------

mkdir model
cat >model/config.json <<'END'
{"model_type": "llama", "vocab_size": 67, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
 "num_key_value_heads": 2, "max_position_embeddings": 64, "tie_word_embeddings": true, "attention_bias": true, "rms_norm_eps": 1e-6}
END
for i in $(seq 0 999); do printf "\\$(printf %03o $((i * i % 67)))\\0"; done >tokens
cat >run.yaml <<END
model: {path: model, init: random}
data: {path: tokens, format: u16, seq_len: 16}
train: {steps: 6, global_batch_size: 4, micro_batch_size: 1}
optim: {lr: 1.0e-3}
checkpoint: {path: ck, resume: $z1/ckpt}
log: {metrics: m.jsonl}
END
losses() { sed -E 's/.*"step": ([0-9]*),.*"loss": ([0-9.]{6})[^,]*,.*/\1 \2/' m.jsonl; }
for world in 1 2 3; do
    rm -rf ck m.jsonl
    "$BIN/fsdp-launch" -n $world run.yaml >log 2>&1 && losses >$world.txt && cmp -s 1.txt $world.txt &&
        [ "$(head -n 1 $world.txt | cut -d' ' -f1)" = 4 ]
    ok $? "$world ranks continue with step 4: $(tail -n 1 log)"
done
rm -rf ck m.jsonl
"$BIN/fsdp-launch" -n 2 run.yaml checkpoint.resume="$PWD/z1" >log 2>&1 && losses | cmp -s - 1.txt
ok $? "and from what was resharded"

# The same weights and moments as torch.save has them, under the names of the parameters; and by their numbers.
rm -rf ck m.jsonl
"$BIN/fsdp-launch" -n 2 run.yaml checkpoint.resume="$z1/as_torch_save.pt" >log 2>&1 && losses | cmp -s - 1.txt
ok $? "and from a file of torch.save"
"$BIN/fsdp-launch" -n 2 run.yaml checkpoint.resume="$TOP/tests/data/torch-save/nested.pt" >log 2>&1
ok "$([ $? != 0 ] && grep -q "its optimizer's state is by numbers ('opt.state.0.exp_avg')" log; echo $?)" "not from one that numbers the parameters: $(tail -n 1 log)"

# ---- what is refused -----------------------------------------------------------------------------

fresh() { # checkpoint
    rm -rf bad
    cp -r "$1/ckpt/global_step3" bad
    chmod -R u+w bad
}
refused() { # text, description
    rm -rf never.safetensors
    run 1 ckpt-merge bad -o never.safetensors && says "$1" && [ ! -e never.safetensors ]
    ok $? "$2: $(tail -n 1 err)"
}
optim=bf16_zero_pp_rank_%d_mp_rank_00_optim_states.pt
name() { printf "$optim" "$1"; }
fresh "$z1"
rm "bad/$(name 1)"
refused "saved by 2 ranks, and there are optimizer files of 1" "a rank's file that is missing"
fresh "$z1"
rm "bad/$(name 0)"
refused "the optimizer file of rank 0 of 2 is missing" "that of rank 0"
fresh "$z1"
rm bad/mp_rank_00_model_states.pt
refused "mp_rank_00_model_states.pt' is missing" "the model states"
fresh "$z3"
rm bad/zero_pp_rank_1_mp_rank_00_model_states.pt
refused "and there are model files of 1" "those of a rank of ZeRO-3"
fresh "$z1"
cp "$z3/ckpt/global_step3/$(name 1)" bad/
refused "rank_1_mp_rank_00_optim_states.pt' has no 'single_partition_of_fp32_groups'" "a rank of another run"
fresh "$z3"
cp "$z3/ckpt/global_step3/$(name 1)" "bad/$(name 2)"
refused "and there are optimizer files of 3" "a rank too many"
fresh "$z1"
cp "bad/$(name 1)" "bad/zero_pp_rank_1_mp_rank_00_optim_states.pt"
refused "two files of rank 1" "two files of a rank"
fresh "$z1"
cp bad/mp_rank_00_model_states.pt bad/mp_rank_01_model_states.pt
refused "(tensor or pipeline parallelism, or experts)" "a model that is split"
fresh "$z1"
cp "$z1/update2_rank1_optim_states.pt" "bad/$(name 1)"
refused "are of two saves" "a rank of another step"
fresh "$z1"
mv "bad/$(name 0)" kept && mv "bad/$(name 1)" "bad/$(name 0)" && mv kept "bad/$(name 1)"
refused "the files of ranks were swapped" "two ranks under each other's names"
for from in "$z1" "$z3"; do
    fresh "$from"
    cp "bad/$(name 0)" "bad/$(name 1)"
    refused "it is a copy" "a rank twice"
    fresh "$from"
    rm bad/*optim*
    refused "no *_optim_states.pt, which hold the fp32 weights" "the optimizer's files of all ranks"
done
fresh "$z1"
size=$(stat -c %s "bad/$(name 1)")
truncate -s $((size - 5000)) "bad/$(name 1)"
refused "$(name 1)'" "a file that was cut"
fresh "$z1"
for at in $((size / 5)) $((size / 2)) $((size * 4 / 5)); do
    printf '\377\1\2' | dd of="bad/$(name 1)" bs=1 seek=$at conv=notrunc status=none
done
run 1 ckpt-verify bad && says "optim_states.pt' are damaged"
ok $? "changed bytes: $(head -n 1 err)"
rm -rf never
run 1 ckpt-merge bad --all -o never && says damaged && [ ! -e never ]
ok $? "are not merged"
rm -rf bad
mkdir bad
echo ../elsewhere >bad/latest
refused "'bad/latest' names '../elsewhere'" "a 'latest' that leads elsewhere"

echo "1..$n"
exit $bad
