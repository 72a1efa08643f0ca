#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Adapters without Python (tests/interop/adapters.sh compares them with PEFT): what a run trains and saves, resumption on
# other ranks, merging, and what is refused.
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/train.sh"
make_input
cat >run.yaml <<'END'
model: {path: base}
lora: {r: 4, alpha: 8, dropout: 0.1}
data: {path: text, seq_len: 32}
train: {steps: 6, global_batch_size: 6, micro_batch_size: 1}
optim: {lr: 1.0e-2, schedule: constant}
checkpoint: {path: ck, interval: 3, switches: ''}
log: {metrics: metrics.jsonl, progress: plain}
END
run -n 1 run.yaml lora.r=0 model.path=model model.init=random train.steps=0 checkpoint.path=ck0 &&
    "$BIN/ckpt-merge" -q ck0 -o base/ >>log 2>>err
ok $? "a model to begin with"

mkdir temp
TMPDIR=$PWD/temp run -n 2 -v run.yaml
ok $? "two ranks train adapters"
ok "$([ -z "$(ls temp)" ]; echo $?)" "and leave no temporary file"
ok "$(holds log 'rank 4, times 2: '; echo $?)" "the screen says what is trained"
ok "$(holds log 'frozen parameter shards, F32'; echo $?)" "the plan has a row for what is frozen"
ok "$([ -s ck/step-00000006/hf/adapter_model.safetensors ] && [ -s ck/step-00000006/hf/adapter_config.json ]; echo $?)" \
    "PEFT's files are in the checkpoint"
"$BIN/ckpt-info" ck >log 2>err
ok "$(holds log lora_A.weight && ! holds log embed_tokens; echo $?)" "which has no tensor of the model"
"$BIN/ckpt-verify" ck >log 2>err
ok $? "and is whole"
mkdir half && cp -r ck/step-00000003 half/
run -n 3 run.yaml checkpoint.path=half log.metrics=half.jsonl
ok $? "three ranks resume at step 3"
losses() { sed -n 's/.*"step": \([456]\),.*"loss": \([0-9.]*\).*/\1 \2/p' "$1" | awk '{ printf "%s %.4f\n", $1, $2 }'; }
ok "$([ "$(losses half.jsonl | wc -l)" = 3 ] && [ "$(losses half.jsonl)" = "$(losses metrics.jsonl)" ]; echo $?)" \
    "with the same losses"

run -n 2 run.yaml model.path=base/config.json checkpoint.path= log.metrics=named.jsonl
ok "$([ "$(losses named.jsonl | wc -l)" = 3 ] && [ "$(losses named.jsonl)" = "$(losses metrics.jsonl)" ]; echo $?)" \
    "model.path may be the config.json itself: weights and tokenizer lie next to it"

# ---- a system that clears temporary folders ----
TMPDIR=$PWD/temp "$launch" run.yaml checkpoint.path=long checkpoint.interval=0 train.steps=1000000 log.metrics=long.jsonl >log 2>err &
pid=$!
wait_for long.jsonl '"step": 2'
ok "$(rmdir temp/fsdp-adapter-*; echo $?)" "the temporary folder of a run, empty, is removed"
kill -TERM $pid
wait $pid
ok "$([ $? = 75 ] && [ -s long/step-*/hf/adapter_model.safetensors ] && [ -z "$(ls temp)" ]; echo $?)" "and its next save makes it again"

# ---- bf16: without masters for what is frozen ----
run -n 2 -v run.yaml checkpoint.path= fsdp.param_dtype=bfloat16 log.metrics=plain.jsonl
ok "$(holds log 'frozen parameter shards, BF16'; echo $?)" "2 bytes a parameter in bf16"
run -n 2 run.yaml checkpoint.path= fsdp.param_dtype=bfloat16 fsdp.offload=params log.metrics=other.jsonl
ok "$([ -n "$(losses plain.jsonl)" ] && [ "$(losses plain.jsonl)" = "$(losses other.jsonl)" ]; echo $?)" \
    "the same losses with offloading"
# Split masters round ties in another way (docs/memory.md): one of 2^17 gathered weights may differ.
run -n 2 run.yaml checkpoint.path= fsdp.param_dtype=bfloat16 optim.master=split log.metrics=split.jsonl
ok "$(paste -d' ' <(losses plain.jsonl) <(losses split.jsonl) |
    awk '{ d = $2 - $4; n += $1 == $3 && d < 0.002 && d > -0.002 } END { exit n != 3 }'; echo $?)" "nearly the same with split masters"
run -n 2 run.yaml checkpoint.path= fsdp.param_dtype=bfloat16 fsdp.offload=params optim.master=split log.metrics=other.jsonl
ok "$([ "$(losses split.jsonl | wc -l)" = 3 ] && [ "$(losses split.jsonl)" = "$(losses other.jsonl)" ]; echo $?)" \
    "and the same again with offloading"

# ---- merge ----
"$BIN/ckpt-merge" -q --adapter ck base -o merged/ >log 2>err
ok "$([ $? = 0 ] && [ ! -s err ]; echo $?)" "merged, without a word"
run -n 1 run.yaml lora.r=0 model.path=model model.init=random model.seed=5 train.steps=0 checkpoint.path=ck5 &&
    "$BIN/ckpt-merge" -q ck5 -o other_base/ >>log 2>>err
ln -s ck/step-00000006/hf hf_link
for adapter in ck ck/step-00000006 ck/step-00000006/hf ck/step-00000006/hf/ hf_link; do
    "$BIN/ckpt-merge" -q --adapter $adapter other_base -o other/ --overwrite >log 2>err
    ok "$([ $? = 0 ] && holds err "was trained on another model than other_base: of 21 tensors that were compared 16 differ, 'lm_head.weight' among them" &&
        holds err "it was trained on $PWD/base"; echo $?)" \
        "a warning where the model is not the one that $adapter was trained on"
done
cp -r ck/step-00000006/hf peft && "$BIN/ckpt-merge" -q --adapter peft other_base -o other/ --overwrite >log 2>err
ok "$([ $? = 0 ] && [ ! -s err ]; echo $?)" "none of PEFT's own folder, which does not say"
(cd ck/step-00000006/hf && "$BIN/ckpt-merge" -q --adapter . ../../../other_base -o ../../../other/ --overwrite >../../../log 2>../../../err)
ok "$([ $? = 0 ] && holds err "was trained on another model than "; echo $?)" "a warning also from within its folder"
cp -r half other_root && cp -r peft other_root/hf && "$BIN/ckpt-merge" -q --adapter other_root/hf other_base -o other/ --overwrite >log 2>err
ok "$([ $? = 0 ] && [ ! -s err ]; echo $?)" "a folder of checkpoints next to it is not its own"
"$BIN/fsdp-generate" --model other_base --adapter ck --tokens 1,2,3 >log 2>err
ok "$([ $? = 0 ] && holds err "was trained on another model than other_base"; echo $?)" "fsdp-generate warns, too"
"$BIN/fsdp-generate" --model merged --tokens 1,2,3 --logits >a 2>err
"$BIN/fsdp-generate" --model base --adapter ck --tokens 1,2,3 --logits >b 2>err
"$BIN/fsdp-generate" --model base --tokens 1,2,3 --logits >c 2>err
ok "$([ -s a ] && cmp -s a b && ! cmp -s a c; echo $?)" "the merged model is the model with its adapter, to the bit"
"$BIN/fsdp-generate" --model ck --tokens 1,2,3 >log 2>err
ok "$([ $? = 1 ] && holds err "holds adapters and not the model that they belong to: give --model MODEL --adapter ck"; echo $?)" \
    "generation with adapters alone is refused"
"$BIN/fsdp-generate" --model base --adapter ck=2 --adapter ck=-1 --tokens 1,2,3 --logits >b 2>err
ok "$(paste a b | awk '{ for (i = 1; i <= NF / 2; i++) { d = $i - $(i + NF / 2); if (d * d > 1e-8) exit 1 } }'; echo $?)" "adapters are added together"
"$BIN/ckpt-merge" -q --adapter ck=0 base -o none/ >log 2>err && "$BIN/ckpt-diff" base none >log 2>err
ok $? "an adapter times 0 changes nothing"
cp -r ck/step-00000006/hf odd=2
"$BIN/ckpt-merge" -q --adapter odd=2 base -o odd/ >log 2>err && "$BIN/ckpt-diff" merged odd >log 2>err
ok $? "a folder may have a name that ends as a weight does"
"$BIN/ckpt-merge" -q --adapter odd=2 base -o none/ --overwrite >log 2>err
ok "$([ $? != 0 ] && holds err "there are 'odd=2' and 'odd'; write odd=2=1 or odd/=2"; echo $?)" "where both are there it is refused"
run -n 1 run.yaml checkpoint.path=ck1 train.steps=1 lora.modules_to_save=[lm_head]
for adapters in "ck1=0.5" "ck1 --adapter ck"; do
    "$BIN/ckpt-merge" -q --adapter $adapters base -o none/ --overwrite >log 2>err
    ok "$([ $? != 0 ] && holds err 'lm_head.weight was trained whole'; echo $?)" "a module that was trained whole is refused: $adapters"
done
"$BIN/ckpt-merge" -q --adapter ck base -o map/ --map fuse-qkv >log 2>err
ok "$([ $? = 2 ] && holds err 'merge them first'; echo $?)" "a map with an adapter is refused"

# ---- DoRA ----
run -n 2 run.yaml lora.dora=true checkpoint.path=dora fsdp.activation_checkpointing=full log.metrics=dora.jsonl
ok "$([ $? = 0 ] && holds log 'DoRA, rank 4, times 2: '; echo $?)" "two ranks train DoRA, with dropout"
mkdir half2 && cp -r dora/step-00000003 half2/
run -n 3 run.yaml lora.dora=true checkpoint.path=half2 log.metrics=half2.jsonl
ok "$([ "$(losses half2.jsonl | wc -l)" = 3 ] && [ "$(losses half2.jsonl)" = "$(losses dora.jsonl)" ]; echo $?)" "three resume it, with the same losses"
ok "$([ "$(losses dora.jsonl)" != "$(losses metrics.jsonl)" ]; echo $?)" "which are not those of LoRA"
run -n 2 run.yaml lora.dora=true checkpoint.path= fsdp.param_dtype=bfloat16 log.metrics=dora16.jsonl
ok "$(paste -d ' ' <(losses dora.jsonl) <(losses dora16.jsonl) | awk '{ d = $2 - $4; if (d * d > 4e-4) bad = 1 } END { exit bad || NR != 3 }'; echo $?)" \
    "in bf16 they are about the same"
run -n 1 run.yaml lora.path=dora checkpoint.path= train.steps=3
ok "$([ $? = 0 ] && holds log 'DoRA, rank 4'; echo $?)" "it can be begun from"
refused() { # text, options
    local text=$1
    shift
    run -n 1 run.yaml checkpoint.path= "$@"
    ok "$([ $? != 0 ] && holds err "$text"; echo $?)" "refused: $*"
}
refused 'lora.dora: tensor model.layers.0.self_attn.q_proj.lora_magnitude_vector is not trained, and is trained in' checkpoint.path=dora train.steps=7
refused 'lora.dora is true, and the adapter of lora.path (ck/step-00000006/hf) has false' lora.path=ck/step-00000006/hf lora.dora=true
"$BIN/ckpt-merge" -q --adapter dora base -o scaled/ --threads 3 >log 2>err
ok $? "merged"
"$BIN/fsdp-generate" --model scaled --tokens 1,2,3 --logits >a2 2>err
"$BIN/fsdp-generate" --model base --adapter dora --tokens 1,2,3 --logits >b 2>err
ok "$([ -s a2 ] && cmp -s a2 b && ! cmp -s a2 a && ! cmp -s a2 c; echo $?)" "the merged model is the model with it, to the bit"
"$BIN/ckpt-merge" -q --adapter dora base -o small/ --mem 4M --threads 1 >log 2>err && "$BIN/ckpt-diff" scaled small >log 2>err
ok $? "also where little memory is there"
run -n 1 run.yaml lora.dora=true checkpoint.path=none1 train.steps=0 &&
    "$BIN/ckpt-merge" -q --adapter none1 base -o same/ >log 2>err && "$BIN/ckpt-diff" --atol 1e-7 base same >log 2>err
ok $? "new adapters change nothing"
for adapters in "dora=0.5" "dora --adapter ck"; do
    "$BIN/ckpt-merge" -q --adapter $adapters base -o none/ --overwrite >log 2>err
    ok "$([ $? != 0 ] && holds err '(DoRA): it can be added to no other adapter and has no weight'; echo $?)" "refused: $adapters"
done

# ---- an adapter of the head, without magnitudes and with them ----
for dora in false true; do
    with="lora.targets=[all-linear,lm_head] lora.dora=$dora"
    rm -rf half3 with_head
    run -n 2 run.yaml $with checkpoint.path=head-$dora log.metrics=head.jsonl
    ok $? "two ranks train an adapter of the head, with dropout; DoRA: $dora"
    mkdir half3 && cp -r head-$dora/step-00000003 half3/
    run -n 3 run.yaml $with checkpoint.path=half3 log.metrics=half3.jsonl fsdp.activation_checkpointing=full
    ok "$([ "$(losses half3.jsonl | wc -l)" = 3 ] && [ "$(losses half3.jsonl)" = "$(losses head.jsonl)" ]; echo $?)" "three resume it, with the same losses"
    run -n 1 run.yaml lora.path=head-$dora checkpoint.path= train.steps=3
    ok $? "it can be begun from"
    "$BIN/ckpt-merge" -q --adapter head-$dora base -o with_head/ >log 2>err
    ok $? "merged"
    "$BIN/fsdp-generate" --model with_head --tokens 1,2,3 --logits >a3 2>err
    "$BIN/fsdp-generate" --model base --adapter head-$dora --tokens 1,2,3 --logits >b 2>err
    "$BIN/ckpt-diff" base with_head >log 2>err
    ok "$([ -s a3 ] && cmp -s a3 b && holds log lm_head.weight; echo $?)" "the merged model is the model with it, to the bit"
done
mv head-false head

# ---- a head that files call embed_out and transformers lm_head, trained whole ----
mkdir neox
cat >neox/config.json <<'END'
{"model_type": "gpt_neox", "vocab_size": 256, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
 "num_attention_heads": 2, "max_position_embeddings": 64, "rotary_pct": 0.5}
END
run -n 1 run.yaml lora.r=0 model.path=neox model.init=random train.steps=0 checkpoint.path=neox/ck &&
    "$BIN/ckpt-merge" -q neox/ck -o neox/base/ >>log 2>>err
ok $? "a GPT-NeoX to begin with"
run -n 2 run.yaml model.path=neox/base lora.modules_to_save=[embed_out] checkpoint.path=whole log.metrics=whole.jsonl
ok $? "two ranks train its head"
peft=whole/step-00000006/hf
ok "$(holds $peft/adapter_config.json '"lm_head"' && holds $peft/adapter_model.safetensors base_model.model.lm_head.weight &&
    ! grep -q embed_out $peft/adapter_*; echo $?)" "PEFT's files have transformers' name"
mkdir half4 && cp -r whole/step-00000003 half4/
run -n 3 run.yaml model.path=neox/base lora.modules_to_save=[lm_head] checkpoint.path=half4 log.metrics=half4.jsonl
ok "$([ "$(losses half4.jsonl | wc -l)" = 3 ] && [ "$(losses half4.jsonl)" = "$(losses whole.jsonl)" ]; echo $?)" \
    "three resume it under that name, with the same losses"
run -n 1 run.yaml model.path=neox/base lora.path=whole train.steps=0 checkpoint.path=again
ok "$([ $? = 0 ] && cmp again/step-00000000/hf/adapter_model.safetensors $peft/adapter_model.safetensors; echo $?)" "it can be begun from"
"$BIN/ckpt-merge" -q --adapter whole neox/base -o neox/merged/ >log 2>err
"$BIN/fsdp-generate" --model neox/merged --tokens 1,2,3 --logits >a4 2>err
"$BIN/fsdp-generate" --model neox/base --adapter whole --tokens 1,2,3 --logits >b 2>err
"$BIN/ckpt-diff" neox/base neox/merged >log 2>err
ok "$([ -s a4 ] && cmp -s a4 b && holds log embed_out.weight; echo $?)" "the merged model is the model with it, to the bit"
refused "lora.modules_to_save: 'embed_out' has an adapter (lora.targets) and is trained whole, too" model.path=neox/base \
    lora.targets=[lm_head] lora.modules_to_save=[embed_out]

sed 's/"tie_word_embeddings": false/"tie_word_embeddings": true/' model/config.json >tied.json
grep -q '"tie_word_embeddings": true' tied.json || sed 's/{/{"tie_word_embeddings": true,/' model/config.json >tied.json
mkdir tied && mv tied.json tied/config.json
refused "lora.targets: 'lm_head' is tied" model.path=tied lora.targets=[lm_head]
run -n 1 run.yaml lora.r=0 model.path=tied model.init=random train.steps=0 checkpoint.path=tied/ck &&
    "$BIN/ckpt-merge" -q tied/ck -o tied/hf >log 2>err && "$BIN/ckpt-info" tied/ck >log 2>err
ok $? "a model whose head is tied"
for model in tied/hf tied/ck; do
    "$BIN/ckpt-merge" -q --adapter head $model -o none/ --overwrite >log 2>err
    ok "$([ $? != 0 ] && holds err 'lm_head.weight is not in the model'; echo $?)" "$model has no head of its own to merge into"
done
ok "$(holds err 'but as another name of model.embed_tokens.weight'; echo $?)" "and a run's checkpoint says what it is"

# ---- what an adapter's files must be ----
# other SCRIPT [CHECKPOINTS]: PEFT's folder of ck, where the script has changed tensors (name: bytes) and the configuration
other() {
    rm -rf other
    cp -r ${2:-ck}/step-00000006/hf other
    python3 - "$1" <<'END'
import json, struct, sys
path = "other/adapter_model.safetensors"
with open(path, "rb") as f:
    data = f.read()
n = struct.unpack("<Q", data[:8])[0]
header = json.loads(data[8:8 + n])
tensors = {k: data[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]] for k, v in header.items() if k != "__metadata__"}
with open("other/adapter_config.json") as f:
    config = json.load(f)
q = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
exec(sys.argv[1])
at, body = {}, b""
for k in sorted(tensors):
    at[k] = dict(header[k], data_offsets=[len(body), len(body) + len(tensors[k])])
    body += tensors[k]
text = json.dumps(at).encode()
with open(path, "wb") as f:
    f.write(struct.pack("<Q", len(text)) + text + body)
with open("other/adapter_config.json", "w") as f:
    json.dump(config, f)
END
}
unmerged() { # text: merging `other` is refused with it
    "$BIN/ckpt-merge" -q --adapter other base -o none/ --overwrite >log 2>err
    ok "$([ $? != 0 ] && holds err "$1"; echo $?)" "not merged: $1"
}
for value in nan inf; do
    other "tensors[q + 'A.weight'] = tensors[q + 'A.weight'][:-4] + struct.pack('<f', float('$value'))"
    unmerged "other/adapter_model.safetensors: tensor 'base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight' holds $value"
done
run -n 2 run.yaml checkpoint.path= lora.path=other
ok "$([ $? != 0 ] && holds err "q_proj.lora_A.weight' holds inf"; echo $?)" "nor is it a start"
base=base_model.model.lm_head.base_layer.weight
other "header['$base'] = {'dtype': 'F32', 'shape': [256, 64]}; tensors['$base'] = bytes(4 * 256 * 64)"
unmerged "other/adapter_model.safetensors: '$base' is not lm_head.weight of base: its adapter was trained on another model"
refused "'$base' is not lm_head.weight of base" lora.path=other
other 'config["lora_alpha"] = 1e300'
unmerged 'other/adapter_config.json: lora_alpha is 1e+300'
other 'config["lora_alpha"] = 1e38; tensors[q + "A.weight"] = tensors[q + "B.weight"] = struct.pack("<f", 1e10) * (4 * 64)'
unmerged 'model.layers.0.self_attn.q_proj.weight has values beyond F32 with the adapter'
other 'config["use_rslora"] = "true"'
unmerged 'other/adapter_config.json: use_rslora is "true": neither true nor false'
other 'del tensors[q + "B.weight"]'
unmerged 'other/adapter_model.safetensors: has lora_A of model.layers.0.self_attn.q_proj.weight, and no lora_B'
other 'config["use_dora"] = True'
unmerged 'proj.weight there is no lora_magnitude_vector'
refused "has no tensor 'base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector'" lora.path=other
other 'del tensors[q + "A.weight"]'
unmerged 'other/adapter_model.safetensors: has lora_B of model.layers.0.self_attn.q_proj.weight, and no lora_A'
other 'config["modules_to_save"] = ["embed_out"]; new, old = "base_model.model.lm_head.weight", "base_model.model.embed_out.weight"
header[old] = header[new]; tensors[old] = tensors.pop(new)' whole
run -n 1 run.yaml model.path=neox/base lora.path=other train.steps=0 checkpoint.path=older
ok "$([ $? = 0 ] && cmp older/step-00000000/hf/adapter_model.safetensors $peft/adapter_model.safetensors; echo $?)" \
    "a head under the name that older transformers had is a start"
for out in ck/step-00000006/hf ck/step-00000006/hf/merged ck/step-00000006/merged ck/step-00000006/hf/x.safetensors; do
    "$BIN/ckpt-merge" -q --adapter ck base -o $out >log 2>err
    ok "$([ $? != 0 ] && holds err "is or lies in the adapter 'ck/step-00000006'" && [ ! -e $out/model.safetensors ]; echo $?)" "not merged into $out"
done
ln -s ck/step-00000006/hf link
other pass
"$BIN/ckpt-merge" -q --adapter other base -o other/merged >log 2>err
ok "$([ $? != 0 ] && holds err "is or lies in the adapter 'other'"; echo $?)" "nor into PEFT's folder"
"$BIN/ckpt-merge" -q --adapter ck base -o link/merged >log 2>err
ok "$([ $? != 0 ] && holds err "is or lies in the adapter"; echo $?)" "nor through a link"

cp -r ck/step-00000006/hf linked && mv linked/adapter_model.safetensors own.safetensors && cp own.safetensors own.copy &&
    ln -s ../own.safetensors linked/adapter_model.safetensors
"$BIN/ckpt-merge" -q --adapter linked base -o own.safetensors --overwrite >log 2>err
ok "$([ $? != 0 ] && holds err "output 'own.safetensors' " && cmp own.safetensors own.copy; echo $?)" "nor into a file that the adapter's is a link to: $(cat err)"
"$BIN/ckpt-merge" -q --adapter linked base -o full.safetensors >log 2>err
ok $? "which is an adapter as any other"

# ---- other formats ----
for format in dcp hf-dcp; do
    "$BIN/ckpt-reshard" -q ck -o dcp --world 2 --format $format >log 2>err
    ok "$([ $? != 0 ] && holds err "'ck/step-00000006' holds adapters, and files of torch.distributed.checkpoint can carry neither" && [ ! -e dcp ]; echo $?)" "not rewritten as $format"
done
"$BIN/ckpt-merge" -q ck -o alone.safetensors >log 2>err
ok "$([ $? != 0 ] && holds err 'holds adapters and not the model' && [ ! -e alone.safetensors ]; echo $?)" "nor as a file of weights"
"$BIN/ckpt-reshard" -q ck -o native/step-00000006 --world 3 >log 2>err && cmp ck/step-00000006/hf/adapter_model.safetensors native/step-00000006/hf/adapter_model.safetensors &&
    run -n 3 run.yaml checkpoint.path=native train.steps=7
ok $? "for other ranks it has all that a run resumes from"

"$BIN/ckpt-merge" -q ck -o alone >log 2>err
ok "$([ $? != 0 ] && holds err 'holds adapters and not the model' && [ ! -e alone ]; echo $?)" "adapters without their model are no model"

# ---- what is refused ----
refused "lora.targets: 'q_porj' is no linear map" lora.targets=[q_porj]
refused "lora.modules_to_save: the model has no module 'head'" lora.modules_to_save=[head]
refused "lora.modules_to_save: 'q_proj' has an adapter (lora.targets) and is trained whole, too" lora.modules_to_save=[q_proj]
refused 'lora.path: nowhere: holds no adapter_config.json' lora.path=nowhere
refused 'model.init: adapters belong to a model that is stored' model.init=random
refused "lora.targets: 'model.layers.0.self_attn.q_proj' is a map of one layer" lora.targets=[model.layers.0.self_attn.q_proj]
refused 'fsdp.frozen: a run with adapters freezes the model itself' fsdp.frozen=[*lora_A*]
start=lora.path=ck/step-00000006/hf
refused 'lora.r is 8, and the adapter of lora.path (ck/step-00000006/hf) has 4' $start lora.r=8
refused 'lora.alpha is 16, and the adapter of lora.path (ck/step-00000006/hf) has 8' $start lora.alpha=16
refused 'lora.rslora is true, and the adapter of lora.path (ck/step-00000006/hf) has false' $start lora.rslora=true
refused 'lora.modules_to_save is [lm_head], and the adapter of lora.path (ck/step-00000006/hf) has []' $start lora.modules_to_save=[lm_head]
refused 'lora.targets: has not self_attn.k_proj, and the adapter of lora.path has' $start lora.targets=[q_proj]
run -n 1 run.yaml checkpoint.path= $start lora.alpha=8 lora.targets=[q_proj,k_proj,v_proj,o_proj,mlp.gate_proj,up_proj,down_proj]
ok "$([ $? = 0 ] && holds log 'weights of base, adapters of ck/step-00000006/hf'; echo $?)" "the same is fine, and the screen says where adapters begin"
other 'tensors = {k: v for k, v in tensors.items() if 0}; head = "base_model.model.lm_head.weight"; header[head] = {"dtype": "F32", "shape": [256, 64]}; tensors[head] = bytes(4 * 256 * 64); config["modules_to_save"] = ["lm_head"]'
refused 'other has no lora_A of any layer, only modules that were trained whole' lora.path=other
config() { # key, value: PEFT's folder with another value
    rm -rf other
    cp -r ck/step-00000006/hf other
    sed -i "s/\"$1\": [^,]*/\"$1\": $2/" other/adapter_config.json
}
for key in bias peft_type layer_replication rank_pattern; do
    case $key in
    layer_replication) config peft_type '"LORA", "layer_replication": [[0, 1]]' ;;
    rank_pattern) config $key '{"(?!q)_proj": 8}' ;;
    *) config $key '"all"' ;;
    esac
    refused "$key" lora.path=other
done
mkdir short
sed 's/\("num_hidden_layers": \)[0-9]*/\11/' model/config.json >short/config.json
run -n 1 run.yaml lora.r=0 model.path=short model.init=random train.steps=0 checkpoint.path=ck4 &&
    "$BIN/ckpt-merge" -q ck4 -o one/ >>log 2>>err
refused 'this model has no parameter for tensor' model.path=one lora.path=ck lora.r=4
run -n 1 run.yaml lora.r=0
ok "$([ $? != 0 ] && holds err 'holds adapters and not the model'; echo $?)" "refused: to resume without adapters"
refused 'lora.alpha: the adapters of ck/step-00000006 were trained times 2, and are times 4 now' checkpoint.path=ck train.steps=7 lora.alpha=16
refused 'lora.alpha: the adapters of ck/step-00000006 were trained times 2, and are times 4 now' checkpoint.path=ck train.steps=7 lora.rslora=true
refused 'q_proj.lora_A.weight is not trained, and is trained in ck/step-00000006' checkpoint.path=ck train.steps=7 lora.targets=[up_proj]
refused 'lora.modules_to_save: tensor lm_head.weight is trained, and is not in' checkpoint.path=ck train.steps=7 lora.modules_to_save=[lm_head]
run -n 2 run.yaml checkpoint.path=ck1 train.steps=2
ok "$([ $? != 0 ] && holds err 'lora.modules_to_save: tensor lm_head.weight is not trained, and is trained in'; echo $?)" "and the other way round"
run -n 1 run.yaml checkpoint.path=ck0
ok "$([ $? != 0 ] && holds err 'was not saved by a run with adapters'; echo $?)" "refused: to resume a run without any"
mkdir mixture
cat >mixture/config.json <<'END'
{"model_type": "granitemoeshared", "vocab_size": 256, "hidden_size": 24, "intermediate_size": 12,
 "shared_intermediate_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "num_local_experts": 5,
 "num_experts_per_tok": 2}
END
run -n 1 run.yaml lora.r=0 model.path=mixture model.init=random train.steps=0 checkpoint.path=ck2 &&
    "$BIN/ckpt-merge" -q ck2 -o experts/ >>log 2>>err && run -n 2 run.yaml model.path=experts checkpoint.path=ck3
ok "$([ $? = 0 ] && "$BIN/ckpt-info" ck3 >log 2>err && holds log shared_mlp.input_linear.lora_A.weight &&
    ! holds log router; echo $?)" "a mixture of experts: all-linear takes all but its router"
echo "1..$n"
exit $bad
