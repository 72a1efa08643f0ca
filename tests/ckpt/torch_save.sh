#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Files that torch.save wrote (tests/data/torch-save, torch 2.15): every dtype, views, strides, shared storages, both file
# forms, a folder with an index, nested dicts. What is damaged, misplaced or no tensor is refused by name.
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/tools.sh"
data=$TOP/tests/data/torch-save
# Every tensor has dtype, shape and bits of what torch made contiguous.
same() { run 0 ckpt-diff --model "$1" "$data/expected.safetensors" && says '20 tensors are the same, 0 near, 0 different'; }

for form in zip.pt legacy.pt nested.pt folder; do
    same "$data/$form"
    ok $? "$form: every tensor is that of torch: $(tail -n 1 out err | tr '\n' ' ')"
    run 0 ckpt-merge "$data/$form" -o "$form.safetensors" --quiet && same "$form.safetensors"
    ok $? "and merged"
done
run 0 ckpt-merge --mem 1M "$data/zip.pt" -o little.safetensors --quiet && same little.safetensors
ok $? "in little memory"
run 0 ckpt-reshard "$data/nested.pt" -o native --world 3 --quiet && same native && run 0 ckpt-verify native
ok $? "resharded for 3 ranks: $(tail -n 1 out)"
run 0 ckpt-reshard "$data/nested.pt" -o dcp --world 2 --format dcp --quiet && same dcp
ok $? "and as a checkpoint of torch.distributed"
run 0 ckpt-info "$data/nested.pt" && says 'format       torch.save' && says 'optimizer    2 tensors' && says 'model        20 tensors'
ok $? "the containers tell model from optimizer"
run 0 ckpt-info "$data/single-parameter.pt" && says single-parameter && says '[6, 10]'
ok $? "a single tensor has the name of its file"
run 0 ckpt-verify "$data/zip.pt" && says "each archive's checksum is right"
ok $? "ckpt-verify: $(cat out)"
run 0 ckpt-verify "$data/legacy.pt" && says "this format has no checksums"
ok $? "and of the legacy form: $(cat out)"
cat "$data/zip.pt" >pipe.pt && ln -s pipe.pt link.pt && same link.pt
ok $? "by a link"

run 0 ckpt-info "$data/odd.pt" && says 'model        2 tensors' && says '[300, 200]' && says "its key is neither a text nor an integer"
ok $? "one element for many, keys that are no names, an inner state_dict: $(cat err)"
run 0 ckpt-verify "$data/interleaved.pt" && run 0 ckpt-merge "$data/interleaved.pt" -o interleaved.safetensors --quiet &&
    run 0 ckpt-diff "$data/interleaved.pt" interleaved.safetensors && says '72 tensors are the same'
ok $? "views of twelve storages in turn"
run 0 ckpt-info "$data/folder/pytorch_model-00001-of-00002.bin" && says 'is one of 2 parts of a model'
ok $? "a part that is named alone: $(cat err)"

# ---- Lightning -----------------------------------------------------------------------------------

# Written by Lightning 2.6: Trainer.save_checkpoint, and ModelParallelStrategy on 2 ranks. Next to each, the weights alone.
lightning=$TOP/tests/data/lightning
for kept in last.ckpt fsdp2; do
    run 0 ckpt-diff --model $lightning/$kept $lightning/${kept%.ckpt}-weights.pt && says '4 tensors are the same, 0 near, 0 different'
    ok $? "Lightning's $kept: $(tail -n 1 out)"
done
printf '%s\n' 'model.** -> $1' >map
run 0 ckpt-merge $lightning/last.ckpt --map map -o bare.safetensors --quiet && run 0 ckpt-info bare.safetensors && says '0.weight' && ! says model.0
ok $? "without the name of the module in the LightningModule"

# ---- what is refused -----------------------------------------------------------------------------

refused() { # file, text, description
    rm -rf never.safetensors
    run 1 ckpt-merge "$1" -o never.safetensors && says "$2" && [ ! -e never.safetensors ]
    ok $? "$3: $(tail -n 1 err)"
}
refused "$data/refuse-call.pt" "refuse-call.pt' names the global 'posix.system'" "a pickle that would run a program"
refused "$data/refuse-module.pt" "names the global 'torch.nn.modules.linear.Linear'" "a whole module"
refused "$data/refuse-sparse.pt" "names the global 'torch._utils._rebuild_sparse_tensor'" "a sparse tensor"
refused "$data/refuse-bomb.pt" "its values repeat too often" "a small file that is a large tree"
refused "$data/refuse-names.pt" "two of its values have this name, and no option can tell them apart; save one under another name" "two values of one name"
refused "$TOP/tests/data/deepspeed-z1-2r/ckpt/global_step3/mp_rank_00_model_states.pt" "is a part of a checkpoint of DeepSpeed: name its folder" "a part of DeepSpeed's"
cp "$data/zip.pt" damaged.pt
at=$(grep -abo 'zip/data/0' damaged.pt | head -n 1 | cut -d: -f1)
at=$(((at + 14 + 63) / 64 * 64 + 4)) # the payload is aligned behind the name
printf x | dd of=damaged.pt bs=1 seek=$at conv=notrunc status=none
refused damaged.pt "tensor 'plain', [0:6, 0:10]" "a changed byte"
run 1 ckpt-verify damaged.pt && says "tensor 'view_rows'" && says '4 faults'
ok $? "ckpt-verify names every tensor of the storage"
for size in 3000 1000 100 10; do
    head -c $size "$data/zip.pt" >short.pt
    refused short.pt "short.pt'" "an archive cut to $size bytes"
    head -c $((size / 2)) "$data/legacy.pt" >short-legacy.pt
    refused short-legacy.pt "short-legacy.pt'" "and a legacy file cut to $((size / 2))"
done
: >empty.pt
refused empty.pt "empty.pt'" "an empty file"
mkdir folder
cp "$data"/folder/* folder/
chmod u+w folder/*
rm folder/pytorch_model-00002-of-00002.bin
refused folder "'folder/pytorch_model-00002-of-00002.bin' is missing" "a part that is missing"
rm folder/pytorch_model.bin.index.json
refused folder "'folder/pytorch_model-00002-of-00002.bin' is missing" "and without the index"
cp "$data"/folder/* folder/
cp folder/pytorch_model-00001-of-00002.bin folder/pytorch_model-00002-of-00002.bin
refused folder "which the index does not place there" "a part twice"
cp "$data"/folder/* folder/
sed -i 's/"i16": "pytorch_model-00002-of-00002.bin"/"i17": "pytorch_model-00002-of-00002.bin"/' folder/pytorch_model.bin.index.json
refused folder "holds tensor 'i16'" "a tensor that the index does not list"
sed -i 's/"i17": "pytorch_model-00002-of-00002.bin"/"i16": "pytorch_model-00002-of-00002.bin", "lost": "pytorch_model-00001-of-00002.bin"/' folder/pytorch_model.bin.index.json
refused folder "tensor 'lost': the index places it in 'pytorch_model-00001-of-00002.bin'" "one that is in no file"
rm folder/pytorch_model.bin.index.json folder/pytorch_model-00002-of-00002.bin
mv folder/pytorch_model-00001-of-00002.bin folder/pytorch_model-00001-of-00001.bin
cp folder/pytorch_model-00001-of-00001.bin folder/pytorch_model.bin
refused folder "is listed twice: in 'pytorch_model-00001-of-00001.bin' and in 'pytorch_model.bin'" "two files of the same tensors"
python3 - <<'END' # the entries of torch.jit.save
import pickle, zipfile
with zipfile.ZipFile("script.pt", "w") as file:
    file.writestr("script/data.pkl", b"\x80\x02c__torch__\nNet\n)\x81}b.")
    file.writestr("script/code/__torch__.py", "class Net(Module):\n")
    file.writestr("script/constants.pkl", pickle.dumps((), protocol=2))
    file.writestr("script/version", "3\n")
END
refused script.pt "'./script.pt' is a program of TorchScript (torch.jit.save), not a state dict" "a program of TorchScript"
cp "$data/zip.pt" spoiled.safetensors
refused spoiled.safetensors "is a zip archive, no safetensors file" "an archive under another format's name"

echo "1..$n"
exit $bad
