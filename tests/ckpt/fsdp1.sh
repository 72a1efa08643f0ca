#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# FSDP1's LOCAL_STATE_DICT: flat parameters, which config.json gives names. tests/data/fsdp1 is what torch 2.15 saved with
# two ranks on the CPU: a file of torch.save a rank (local), a distributed checkpoint (dcp), and the model's
# FULL_STATE_DICT (model); of3 has the file of one rank of three. tests/interop/fsdp1.sh has the other families.
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/tools.sh"
data=$TOP/tests/data/fsdp1
same() { run 0 ckpt-diff --model "$1" "$data/model" && says '21 tensors are the same, 0 near, 0 different'; }

run 0 ckpt-merge "$data/local" -o files.safetensors --config "$data/model" --quiet && same files.safetensors
ok $? "files of ranks: $(tail -n 1 out)"
run 0 ckpt-merge "$data/dcp" -o dcp.safetensors --config "$data/model/config.json" --quiet && same dcp.safetensors
ok $? "torch.distributed.checkpoint; --config names the file: $(tail -n 1 out)"
run 0 ckpt-merge "$data/local/pytorch_model_fsdp_rank1.bin" -o one.safetensors --config "$data/model" && says 'the files of all ranks are read' &&
    same one.safetensors
ok $? "by the name of one of them: $(tail -n 1 out)"
run 0 ckpt-merge "$data/local" -o merged --config "$data/model" --quiet --mem 1M && same merged && cmp -s merged/config.json "$data/model/config.json"
ok $? "in little memory; config.json goes along"
cp -r "$data/local" next && cp "$data/model/config.json" next
run 0 ckpt-merge next -o next.safetensors && says 'no name proves them, only the number of elements' && same next.safetensors
ok $? "a config.json next to them is taken, and a line says what proves it"
run 0 ckpt-merge "$data/named" -o named.safetensors --config "$data/named-model" && says 'the files have all names in this order' &&
    ! says 'no name proves' && run 0 ckpt-diff named.safetensors "$data/named-model"
ok $? "files of use_orig_params have names, which are compared, and the line says so: $(tail -n 1 out)"
run 0 ckpt-reshard "$data/local" -o native --world 3 --config "$data/model" --quiet && same native && run 0 ckpt-verify native
ok $? "for three ranks of ours: $(tail -n 1 out)"
run 0 ckpt-reshard "$data/dcp" -o for-torch --world 2 --format dcp --config "$data/model" --quiet && same for-torch
ok $? "for torch, with names: $(tail -n 1 err)"
run 0 ckpt-info "$data/local" --config "$data/model" && says 'format       fsdp1' && says '21 tensors, 5840 parameters'
ok $? "ckpt-info: $(grep format out)"
run 0 ckpt-verify "$data/dcp" --config "$data/model" && says "each archive's checksum is right"
ok $? "ckpt-verify: $(tail -n 1 out)"
run 0 ckpt-diff "$data/local" "$data/dcp" --config "$data/model" && says '21 tensors are the same'
ok $? "ckpt-diff of both: $(tail -n 1 out)"
run 0 ckpt-merge --average "$data/local" "$data/dcp" -o average.safetensors --config "$data/model" && same average.safetensors
ok $? "ckpt-merge --average of both: $(tail -n 1 out)"
run 0 ckpt-merge --check "$data/local" --config "$data/model" && says 'OK: 21 tensors'
ok $? "ckpt-merge --check: $(tail -n 1 out)"

# ---- two models: of the first there is one rank of three, so that it cannot be what is read ----

mkdir models && cp "$data/of3/pytorch_model_fsdp_rank1.bin" models
for rank in 0 1; do cp "$data/local/pytorch_model_fsdp_rank$rank.bin" "models/pytorch_model_fsdp_1_rank$rank.bin"; done
run 0 ckpt-merge models/pytorch_model_fsdp_1_rank0.bin -o second.safetensors --config "$data/model" && same second.safetensors
ok $? "the second model, by the name of one of its files: $(tail -n 1 out)"
run 1 ckpt-merge models/pytorch_model_fsdp_rank1.bin -o never --config "$data/model" && says 'the file of rank 0 is missing' && says 'of the 3'
ok $? "the first, which lacks ranks: $(tail -n 1 err)"
run 1 ckpt-merge models -o never --config "$data/model" && says "the weights of two models, 'pytorch_model_fsdp_" && says 'name a file of one'
ok $? "the folder of two models: $(tail -n 1 err)"
cp -r "$data/local" forms && touch forms/pytorch_model_fsdp.bin
run 0 ckpt-merge forms -o forms.safetensors --config "$data/model" && says "'pytorch_model_fsdp.bin' is not; to read that, name it" && same forms.safetensors
ok $? "whole weights of accelerate's next to them: $(head -n 1 err)"

# ---- what is refused ----

for from in local dcp; do
    run 1 ckpt-merge "$data/$from" -o never && says "which have neither names nor shapes" && says "(--config DIR)"
    ok $? "$from without a config: $(tail -n 1 err)"
done
run 1 ckpt-merge "$data/local" -o never --config "$data/local" && says "has no config.json"
ok $? "a folder without one: $(tail -n 1 err)"
config() { # name, what sed changes
    sed "$2" "$data/model/config.json" >"$1.json"
}
config wide 's/"intermediate_size":28/"intermediate_size":29/'
run 1 ckpt-merge "$data/local" -o never --config wide.json && says "'model.layers.0' has 2144 elements" && says 'there have 2192'
ok $? "another config: $(tail -n 1 err)"
config tied 's/"tie_word_embeddings":false/"tie_word_embeddings":true/'
run 1 ckpt-merge "$data/local" -o never --config tied.json && says "of 'the root' has 1552 elements" && says 'there have 784'
ok $? "a tied one: $(tail -n 1 err)"
config deep 's/"num_hidden_layers":2/"num_hidden_layers":3/'
run 1 ckpt-merge "$data/local" -o never --config deep.json && says "of 'the root' has 1552 elements, and the 12 parameters"
ok $? "more layers than there are units, so that the root would have them: $(tail -n 1 err)"
config other 's/"llama"/"t5"/'
run 1 ckpt-merge "$data/local" -o never --config other.json && says "model_type 't5' is not known" && says 'gpt2'
ok $? "a family that is not known: $(tail -n 1 err)"
config sizeless 's/"hidden_size":16,//'
run 1 ckpt-merge "$data/local" -o never --config sizeless.json && says 'it has no hidden_size'
ok $? "a size that is missing: $(tail -n 1 err)"

cp -r "$data/local" lost && rm -f lost/pytorch_model_fsdp_rank1.bin
run 1 ckpt-merge lost -o never --config "$data/model" && says "the file of rank 1 is missing"
ok $? "a rank that is missing: $(tail -n 1 err)"
cp "$data/of3/pytorch_model_fsdp_rank1.bin" lost
run 1 ckpt-merge lost -o never --config "$data/model" && says "in 3 parts" && says "in 2 of" && says "by different numbers of ranks"
ok $? "one of another number of ranks: $(tail -n 1 err)"
cp -r "$data/local" doubled && cp "$data/local/pytorch_model_fsdp_rank0.bin" doubled/pytorch_model_fsdp_rank01.bin
run 1 ckpt-merge doubled -o never --config "$data/model" && says "two files of rank 1, 'pytorch_model_fsdp_rank01.bin' and 'pytorch_model_fsdp_rank1.bin'"
ok $? "two files of a rank: $(tail -n 1 err)"
cp -r "$data/local" stray && cp "$data/local/pytorch_model_fsdp_rank1.bin" stray/pytorch_model_fsdp_rank2.bin
run 1 ckpt-merge stray -o never --config "$data/model" && says '3 files of ranks' && says 'in 2 parts' && says "'pytorch_model_fsdp_rank2.bin' is of another save"
ok $? "a rank beyond those that there are: $(tail -n 1 err)"
cp stray/pytorch_model_fsdp_rank0.bin stray/pytorch_model_fsdp_rank3.bin
run 0 ckpt-merge stray -o replicas.safetensors --config "$data/model" && same replicas.safetensors
ok $? "replicas of a hybrid mesh, as four ranks have them: $(tail -n 1 out)"
cp -r "$data/local" two && cp "$data/local/pytorch_model_fsdp_rank0.bin" two/ema_rank_0.pt
run 0 ckpt-merge two -o two.safetensors --config "$data/model" && same two.safetensors
ok $? "accelerate's names go before others"
# A folder lists files by the time they came, backwards or by a hash: some of these always come first.
mkdir many && touch many/a{1..30}_rank_0.pt && cp "$data/local"/* many && touch many/b{1..30}_rank_0.pt
run 0 ckpt-merge many -o many.safetensors --config "$data/model" && same many.safetensors
ok $? "before many others, in whatever order the folder lists them: $(tail -n 1 err)"
mv two/pytorch_model_fsdp_rank0.bin two/model_rank0.pt && mv two/pytorch_model_fsdp_rank1.bin two/model_rank1.pt
run 1 ckpt-merge two -o never --config "$data/model" && says "of two kinds" && says model_rank && says ema_rank_
ok $? "two kinds of other names: $(tail -n 1 err)"
rm -f two/ema_rank_0.pt
run 0 ckpt-merge two -o names.safetensors --config "$data/model" && same names.safetensors
ok $? "other names: $(tail -n 1 out)"
cp -r "$data/local" damaged && chmod -R u+w damaged
printf '\377' | dd of=damaged/pytorch_model_fsdp_rank0.bin bs=1 seek=9000 conv=notrunc 2>dd.log
run 1 ckpt-merge damaged -o never --config "$data/model" && says 'are damaged (checksum' && says pytorch_model_fsdp_rank0.bin
ok $? "a flipped bit: $(tail -n 1 err)"
! [ -e never ] && ! ls -d never.tmp.* 2>/dev/null
ok $? "no output is left of what failed"

echo "1..$n"
exit $bad
