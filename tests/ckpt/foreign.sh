#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Folders that other programs wrote: a second set of weights next to an index, links, configurations,
# names that no file can hold, torch checkpoints in tests/data/dcp-names. Prints TAP.
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
export PATH=$BIN:$PATH
llama=$TOP/tests/data/llama-tiny torch=$TOP/tests/data/dcp-names
run() { # status, command: did it exit so?
    want=$1
    shift
    "$@" >log 2>err
    test $? -eq "$want"
}
says() { grep -qF -- "$1" log err; }
names() { ckpt-info --json "$1" | sed -n '/"tensors"/,$s/^  "\(.*\)": {$/\1/p' | sort | tr '\n' ' '; }
safetensors() { # file, tensor: one F32 element
    header="{\"$2\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}"
    printf "\\$(printf %o ${#header})\\0\\0\\0\\0\\0\\0\\0%s\\0\\0\\200\\077" "$header" >"$1"
}

# ---- Hugging Face folders ----
mkdir two
ckpt-merge -q $llama -o two/sharded --max-shard-size 20K 2>err && mv two/sharded hub && rmdir two
ok $? "a folder with an index"
safetensors hub/consolidated.safetensors layers.0.attention.wq.weight
safetensors hub/adapter_model.safetensors lora
run 0 ckpt-merge hub -o merged && says "'hub/consolidated.safetensors' is not read: the index does not list it" &&
    says "'hub/adapter_model.safetensors' is not read" && run 0 ckpt-diff merged $llama
ok $? "a second set of weights next to an index is named and not read"
rm hub/model-00002-of-*.safetensors
run 1 ckpt-merge hub -o lost && says "is missing: the index lists it" && ! [ -e lost ]
ok $? "what the index lists must be there"

mkdir single
cp $llama/*.safetensors single/
safetensors single/consolidated.safetensors layers.0.attention.wq.weight
safetensors single/adapter_model.safetensors lora
run 0 ckpt-merge single -o merged1 && says "'single/consolidated.safetensors' is not read" &&
    says "'single/adapter_model.safetensors' is not read" && run 0 ckpt-diff merged1 $llama
ok $? "also where one file holds the model"
echo '{}' >single/adapter_config.json
for to in 'ckpt-merge -o' 'ckpt-merge --torch -o' 'ckpt-reshard --world 1 -o' 'ckpt-cp'; do
    rm -rf whole
    [ "$to" = ckpt-cp ] && run 0 ckpt-cp single whole || run 0 $to whole single
    says "'single/adapter_config.json' belongs to an adapter and is left out" && [ -e whole ] && ! find whole | grep -q adapter_
    ok $? "nor does its configuration go along: $to"
done
cp -r single both && touch both/pytorch_model.bin && run 0 ckpt-merge both -o both1 &&
    says "'both/pytorch_model.bin' is not read: the safetensors files are"
ok $? "nor are files of torch.save next to safetensors"
mkdir bin && cp both/pytorch_model.bin bin/ && run 0 ckpt-merge $llama -o whole.bin && mv whole.bin bin/pytorch_model.bin &&
    cp single/adapter_model.safetensors bin/ && run 0 ckpt-merge bin -o bin1 && run 0 ckpt-diff bin1 $llama && run 0 ckpt-info bin &&
    says "'bin/adapter_model.safetensors' is not read: the files of torch.save are"
ok $? "nor an adapter next to files of torch.save"
rm both/pytorch_model.bin && touch both/pytorch_model-0000{1,2}-of-00002.bin both/pytorch_model.bin.index.json && run 0 ckpt-merge both -o both2 && run 0 ckpt-diff both2 $llama && run 0 ckpt-info both &&
    says "'both/pytorch_model-00001-of-00002.bin' and 1 more files of torch.save are not read"
ok $? "several, in one line"
mkdir peft && safetensors peft/adapter_model.safetensors lora && echo '{}' >peft/adapter_config.json &&
    run 0 ckpt-cp peft peft2 && [ -e peft2/adapter_config.json ]
ok $? "a copy of an adapter has its configuration"
mkdir adapter && safetensors adapter/adapter_model.safetensors lora && run 0 ckpt-merge adapter -o merged2 && ! says "not read"
ok $? "an adapter alone is read"

mkdir -p cache/blobs cache/snapshots/main linked secrets
cp $llama/model.safetensors linked/
echo '{"secret": 1}' >secrets/shadow
echo '{}' >linked/real.json
ln -s ../secrets/shadow linked/tokenizer.json
ln -s real.json linked/tokenizer_config.json
ln -s nowhere linked/config.json
run 0 ckpt-merge linked -o plain && says "tokenizer.json' is a link to '" && says "outside of the checkpoint" &&
    says "'linked/config.json' is a link to nothing" && ! [ -e plain/tokenizer.json ] && [ -e plain/tokenizer_config.json ]
ok $? "a link that leaves the folder is not followed, others are"
run 0 ckpt-merge linked -o one.safetensors && run 0 ckpt-reshard linked -o native --world 1 && ! [ -e native/hf/tokenizer.json ]
ok $? "nor does it stop an output"
for file in model.safetensors config.json; do
    cp $llama/$file cache/blobs/hash-$file
    ln -s ../../blobs/hash-$file cache/snapshots/main/$file
done
ln -s "$PWD/secrets/shadow" cache/blobs/stolen
ln -s ../../blobs/stolen cache/snapshots/main/stolen.json
ln -s ../../../secrets/shadow cache/snapshots/main/shadow.json
run 0 ckpt-merge cache/snapshots/main -o cached && cmp -s cached/config.json $llama/config.json &&
    ! [ -e cached/stolen.json ] && ! [ -e cached/shadow.json ]
ok $? "links into the blobs of a Hugging Face cache are followed, and no further"
mkdir -p trap/snapshots/main
cp $llama/model.safetensors trap/snapshots/main/
ln -s "$PWD/secrets" trap/blobs
ln -s ../../blobs/shadow trap/snapshots/main/tokenizer.json
run 0 ckpt-merge trap/snapshots/main -o trapped && ! [ -e trapped/tokenizer.json ]
ok $? "blobs that are a link themselves are none"
ln -s cache/snapshots/main latest
run 0 ckpt-merge latest -o cached2 && cmp -s cached2/config.json $llama/config.json
ok $? "also where the folder itself is reached through a link"

mkdir strange
header='{"odd":{"dtype":"F4","shape":[8],"data_offsets":[0,4]},"d9":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[4,8]},"w":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}}'
printf "\\$(printf %o ${#header})\\0\\0\\0\\0\\0\\0\\0%s\\0\\0\\200\\077\\0\\0\\200\\077\\0\\0\\200\\077" "$header" >strange/model.safetensors
run 1 ckpt-merge strange -o odd5 && says "tensor 'odd': unknown dtype 'F4'" && says "'d9' has 9 dimensions" && says "exclude it" &&
    ! [ -e odd5 ] && run 0 ckpt-merge strange -o odd5 --exclude odd --exclude d9 && [ "$(names odd5)" = "w " ] && run 0 ckpt-info strange
ok $? "one tensor of an unknown dtype or of nine dimensions leaves the others readable"
run 1 ckpt-merge strange -o odd5 && [ "$(grep -c "'odd'" err)" = 1 ] && [ "$(grep -c "'d9'" err)" = 1 ]
ok $? "the merge names each once"
for tool in ckpt-info 'ckpt-merge --exclude odd --exclude d9 -o odd6' 'ckpt-diff strange' ckpt-verify 'ckpt-merge --check'; do
    $tool strange >log 2>err
    [ "$(grep -c "tensor 'odd': unknown dtype" err)" -ge 1 ] && says "'d9' has 9 dimensions"
    ok $? "and so does: $tool"
done

run 0 ckpt-verify "$TOP/tests/data/dcp-hf-sharded-2r/ckpt" && says 'it cannot be known' && ! says complete &&
    run 0 ckpt-verify --json "$TOP/tests/data/dcp-hf-sharded-2r/ckpt" && says '"whole": null'
ok $? "ckpt-verify does not call torch's sharded files complete"
run 0 ckpt-verify "$TOP/tests/data/dcp-hf-consolidated-2r-scalar/ckpt" && says complete
ok $? "it does so where an index lists them"
mkdir broken
cp $llama/model.safetensors broken/
echo '{"torch_dtype": "float32", ' >broken/config.json
run 0 ckpt-merge broken -o one2.safetensors && ! says config.json
ok $? "a broken config.json is nothing to a merge into one file"
run 0 ckpt-merge broken -o folder && says "it is copied unchanged" && cmp -s folder/config.json broken/config.json
ok $? "and is copied unchanged to a folder, with a warning"
run 0 ckpt-merge $llama -o fp8 --dtype float8_e4m3fn && grep -q '"float8_e4m3fn"' fp8/config.json
ok $? "config.json's dtype follows --dtype float8_e4m3fn"
run 0 ckpt-reshard $llama -o stepless --world 2 && grep -q '"step": null' stepless/manifest.json &&
    run 0 ckpt-info --json stepless && says '"step": -1' && run 0 ckpt-verify stepless
ok $? "a source without a step makes a native checkpoint without one"
run 0 ckpt-reshard stepless -o again --world 1 && grep -q '"step": null' again/manifest.json
ok $? "which can be resharded again"

# ---- configurations of torch folders ----
run 0 ckpt-reshard $llama -o dcp --format dcp --world 2 && run 0 ckpt-merge dcp -o back &&
    cmp -s back/config.json $llama/config.json && run 0 ckpt-diff back $llama
ok $? "config.json goes into a torch folder and out of it"
mkdir -p checkpoint-500
cp -r dcp checkpoint-500/pytorch_model_fsdp_0
mv checkpoint-500/pytorch_model_fsdp_0/config.json checkpoint-500/
rm -f checkpoint-500/pytorch_model_fsdp_0/*.json
echo '{}' | tee checkpoint-500/tokenizer.json >checkpoint-500/trainer_state.json
run 0 ckpt-merge checkpoint-500/pytorch_model_fsdp_0 -o above && says "are those of 'checkpoint-500'" &&
    cmp -s above/config.json $llama/config.json && [ -e above/tokenizer.json ] && ! [ -e above/trainer_state.json ]
ok $? "the configuration above an accelerate folder goes along, the trainer's state does not"
rm checkpoint-500/config.json
cp checkpoint-500/tokenizer.json checkpoint-500/pytorch_model_fsdp_0/
run 0 ckpt-merge checkpoint-500/pytorch_model_fsdp_0 -o own && [ -e own/tokenizer.json ] && ! [ -e own/config.json ]
ok $? "without one there, the folder's own files go along"
rm dcp/*.json
run 0 ckpt-merge dcp -o bare && says "has no config.json" && ! [ -e bare/config.json ]
ok $? "a merge without a config.json says so"

# ---- names that no file can hold ----
for format in merge native hf-dcp; do
    for name in name-reserved name-surrogate; do
        tool="ckpt-reshard --world 2 --format $format"
        [ $format = merge ] && tool=ckpt-merge
        run 1 $tool $torch/$name -o odd && says "cannot be stored: " && ! [ -e odd ] && ! ls -d odd.tmp* >log 2>err
        ok $? "$name: $format refuses it before it writes"
        run 0 $tool $torch/$name -o odd --exclude '__meta*' --exclude 'a*' && [ "$(names odd)" = "w " ]
        ok $? "$name: $format goes without it"
        rm -rf odd
    done
done
run 0 ckpt-reshard $torch/name-reserved -o odd --world 2 --format dcp && [ "$(names odd)" = "__metadata__ w " ]
ok $? "torch's format can hold __metadata__"
run 1 ckpt-reshard $torch/name-surrogate -o odd2 --world 2 --format dcp && says "not valid UTF-8" && ! [ -e odd2 ]
ok $? "but no lone surrogates"
header='{"__metadata__":{"DCP_VERSION":"1.0","DCP_SHARDING_INFO":"{\"w\":{\"saved_offsets\":[0],\"logical_fqn\":\"__metadata__\"}}"},"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
mkdir logical
printf "\\$(printf %o ${#header})\\0\\0\\0\\0\\0\\0\\0%s\\0\\0\\200\\077" "$header" >logical/model.safetensors
run 1 ckpt-merge logical -o odd3 && says "tensor '__metadata__' cannot be stored" && ! [ -e odd3 ]
ok $? "also where only logical_fqn says so"
# ---- names in torch checkpoints ----
merges() { # checkpoint, names of its weights, options
    rm -rf merged
    run 0 ckpt-merge $torch/$1 -o merged "${@:3}" && [ "$(names merged)" = "$2 " ]
}
reads() { # checkpoint, names of all its tensors: every tool reads it, and nothing is lost on the way
    [ "$(names $torch/$1)" = "$2 " ] && run 0 ckpt-verify $torch/$1 && run 0 ckpt-diff $torch/$1 $torch/$1 &&
        run 0 ckpt-cp $torch/$1 copy-$1 && run 0 ckpt-reshard $torch/$1 -o dcp-$1 --world 2 --format dcp &&
        [ "$(names dcp-$1)" = "$2 " ] && run 0 ckpt-diff $torch/$1 dcp-$1
}
w=model.norm.weight
merges app-and-others $w && says "3 tensors outside of the model are left out" && says "'rng_state'" && says "'app.ema.$w'"
ok $? "weights in app.model have the model's own names; what lies next to it is no weight, and is logged"
merges two-optimizers "model_d.$w model_g.$w"
ok $? "two optimizers with equal parameter names: the weights merge"
reads two-optimizers "model_d.$w model_g.$w optim_d.state.$w.exp_avg optim_d.state.$w.step optim_g.state.$w.exp_avg optim_g.state.$w.step"
ok $? "and their tensors have torch's full names"
merges two-optimizers "model_g.$w" --include 'model_g.*'
ok $? "--include takes one of two models"
run 0 ckpt-reshard $torch/two-optimizers -o gan --world 2 && run 0 ckpt-verify gan && run 0 ckpt-diff gan $torch/two-optimizers
ok $? "both go into a native checkpoint"
run 0 ckpt-reshard $torch/two-optimizers -o gan-hf --world 2 --format hf-dcp && run 0 ckpt-merge gan-hf -o gan-merged &&
    [ "$(names gan-merged)" = "model_d.$w model_g.$w " ]
ok $? "and into torch's safetensors, where they are no weights either"
merges actor-critic "actor.$w critic.$w" && reads actor-critic "actor.$w actor_optim.state.$w.exp_avg actor_optim.state.$w.step critic.$w critic_optim.state.$w.exp_avg critic_optim.state.$w.step"
ok $? "an optimizer is known by its state and groups, not by its key"
merges optimizer-behind net.$w && reads optimizer-behind "net.$w state.$w.exp_avg state.$w.step"
ok $? "also the only one"
merges no-groups net.$w
ok $? "and by exp_avg of a parameter alone"
merges state-is-no-optimizer "state.b state.w"
ok $? "a container 'state' of weights is none"
merges buffer-named-step "$w step"
ok $? "a buffer called as a tensor outside of the model keeps its name in merged weights"
reads buffer-named-step "$w model.step step"
ok $? "in the checkpoint both have torch's full names"
run 1 ckpt-reshard $torch/buffer-named-step -o clash --world 1 && says "'model.step' and 'step'" && ! [ -e clash ] &&
    run 0 ckpt-reshard $torch/buffer-named-step -o clash --world 1 --exclude step && [ "$(names clash)" = "$w step " ]
ok $? "where an output needs one of them out, it says which"
merges outside-and-inside w && reads outside-and-inside "model.w w"
ok $? "a weight of the same name inside of the model and outside"

for odd in name-2000:"has a name of 2006 bytes; at most 1024" name-empty:"has an empty name" \
    name-with-zero:"tensor 'a\\0b' has a name with a 0 byte" nine-dimensions:"'d9' has 9 dimensions; at most 8"; do
    run 1 ckpt-merge $torch/${odd%%:*} -o odd4 && says "${odd#*:}" && says "exclude it" && ! [ -e odd4 ]
    ok $? "${odd%%:*}: the message names the tensor and the limit"
    merges ${odd%%:*} w --exclude 'z*' --exclude '' --exclude 'a*' --exclude d9 && merges ${odd%%:*} w --include w &&
        run 0 ckpt-info $torch/${odd%%:*} && run 1 ckpt-verify $torch/${odd%%:*} &&
        says "1 tensor cannot be read, and so not verified; all else is sound"
    ok $? "${odd%%:*}: the others can be had"
done

# dcp.save({'model': {...}, 'w0': ...}) with DefaultSavePlanner(flatten_state_dict=False)
for tool in "ckpt-merge $torch/not-flattened -o notflat" "ckpt-reshard $torch/not-flattened -o notflat --world 2"; do
    run 1 $tool && says "'model' is a Python value that holds tensors, which are not read" && ! [ -e notflat ]
    ok $? "${tool%% *}: a model that torch saved as one value is not lost without an error"
done
run 1 ckpt-verify $torch/not-flattened && says "1 tensor cannot be read, and so not verified" &&
    merges not-flattened w0 --exclude model
ok $? "ckpt-verify says so, too, and --exclude leaves it out"

# A safetensors file, of which one name holds a 0 byte.
header='{"a\u0000b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"w":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}'
{ printf "\\x$(printf %x ${#header})\0\0\0\0\0\0\0%s" "$header"; printf '\0\0\0\0\0\0\0\0'; } >nul.safetensors
run 1 ckpt-merge nul.safetensors -o odd5.safetensors && says "tensor 'a\0b' has a name with a 0 byte" && says "exclude it" &&
    ! [ -e odd5.safetensors ]
ok $? "a safetensors name with a 0 byte: the message names the tensor"
run 0 ckpt-merge nul.safetensors -o odd5.safetensors --exclude 'a*' && [ "$(names odd5.safetensors)" = "w " ] && run 0 ckpt-info nul.safetensors
ok $? "the others can be had"
echo "1..$n"
exit $bad
