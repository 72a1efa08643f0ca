#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# GGUF files of ckpt-merge: known bytes; the same from shards, with little memory and after kills; and what is refused,
# by name. tests/gguf has llama.cpp load such files.
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/train.sh"
merge() { "$BIN/ckpt-merge" "$@" >log 2>err </dev/null; }

# A folder with model and tokenizer, whose name is in the file.
folder() { # name, model of tests/data
    mkdir -p "$1"
    install -m 644 "$TOP/tests/data/$2"/{config.json,model.safetensors} "$TOP/examples/llama-tiny/tokenizer.json" "$1"
}
folder tiny llama-tiny
folder tiny-gpt gpt2-tiny
sed -i -E '/": 2(1[1-9]|[2-5][0-9]),?$/d; s/": 210,/": 210/' tiny-gpt/tokenizer.json # it has 211 tokens
touch log err

# ---- known bytes -----------------------------------------------------------------------------------

# llama.cpp has loaded these files.
for type in f32 f16 bf16 q8_0 q4_0; do
    for model in tiny tiny-gpt; do
        merge $model -o $model.$type.gguf --type $type || echo "# $(cat err)"
    done
done
sha256sum ./*.gguf | sed 's|\./||' >sums
diff "$TOP/tests/data/gguf.sums" sums >log
ok $? "files of llama and gpt2 in five types are those of tests/data/gguf.sums"
for type in q4_k_m q6_k; do
    merge tiny -o tiny.$type.gguf --type $type && [ "$(head -c 4 tiny.$type.gguf)" = GGUF ]
    ok $? "a file of type $type"
done
merge tiny -o stored.gguf && cmp -s stored.gguf tiny.f32.gguf
ok $? "without --type the file has the stored type"

# ---- the same bytes, however they are made --------------------------------------------------------

merge tiny -o little.gguf --type q4_0 --mem 1M --threads 3 && cmp little.gguf tiny.q4_0.gguf >>log
ok $? "with 1 MiB of buffers"
merge tiny-gpt -o little-gpt.gguf --type f32 --mem 1M && cmp little-gpt.gguf tiny-gpt.f32.gguf >>log
ok $? "the same of transposed matrices"
"$BIN/ckpt-reshard" tiny -o shards/tiny --world 3 >log 2>err && merge shards/tiny -o shards.gguf --type q8_0 &&
    cmp shards.gguf tiny.q8_0.gguf >>log
ok $? "from three ranks' shards"
"$BIN/ckpt-reshard" tiny -o dcp/tiny --world 2 --format dcp >log 2>err && merge dcp/tiny -o dcp.gguf --type f16 &&
    cmp dcp.gguf tiny.f16.gguf >>log
ok $? "from torch's files"
# Averages, and an adapter's change, get the same places.
make_input
cp "$TOP/examples/llama-tiny/tokenizer.json" model
cat >run.yaml <<END
model: {path: model, init: random, seed: 1}
data: {path: text, seq_len: 32}
train: {steps: 3, global_batch_size: 4, seed: 2}
optim: {lr: 3.0e-3, schedule: constant, ema_decay: 0.9}
checkpoint: {path: saved, interval: 3, fsync: false}
log: {metrics: ''}
END
run -n 2 run.yaml && mkdir -p same && "$BIN/ckpt-merge" saved -o same/step-00000003 --ema >log 2>err &&
    merge saved -o ema.gguf --ema --type f32 && merge same/step-00000003 -o same.gguf && cmp ema.gguf same.gguf >>log &&
    merge saved -o last.gguf && ! cmp -s ema.gguf last.gguf
ok $? "from a run: the averages of its weights"
sed -i 's/^model:.*/model: {path: same\/step-00000003}/; s/, ema_decay: 0.9//; s/path: saved/path: lora/' run.yaml
echo 'lora: {r: 4}' >>run.yaml
run -n 2 run.yaml && mkdir -p with && "$BIN/ckpt-merge" --adapter lora same/step-00000003 -o with/step-00000003 >log 2>err &&
    merge --adapter lora same/step-00000003 -o lora.gguf --type q8_0 &&
    merge with/step-00000003 -o with.gguf --type q8_0 && cmp lora.gguf with.gguf >>log &&
    merge same/step-00000003 -o without.gguf --type q8_0 && ! cmp -s lora.gguf without.gguf
ok $? "with an adapter"
killed=0 whole=0
for at in 3 7 12 16 19 22 25 28 31 40 60; do
    rm -rf out.gguf out.gguf.tmp.*
    { CKPT_FAULT=kill:$at merge tiny -o out.gguf --type q8_0 --mem 1M --threads 2 && continue; } 2>noise
    killed=$((killed + 1))
    if [ -e out.gguf ]; then cmp -s out.gguf tiny.q8_0.gguf || continue; fi
    merge tiny -o out.gguf --type q8_0 --mem 1M --threads 2 --overwrite && cmp -s out.gguf tiny.q8_0.gguf &&
        ! compgen -G 'out.gguf.tmp.*' >noise && whole=$((whole + 1))
done
[ $killed -ge 5 ] && [ $killed = $whole ]
ok $? "after a kill at $killed moments the same command completes"
merge tiny -o out.gguf --type f32
[ $? = 1 ] && holds err 'already exists' && cmp -s out.gguf tiny.q8_0.gguf
ok $? "a file that is there is not replaced"
merge tiny -o out.gguf --type f32 --overwrite && cmp -s out.gguf tiny.f32.gguf
ok $? "with --overwrite it is"
echo 'my notes' >notes.gguf
merge tiny -o notes.gguf --overwrite
[ $? = 1 ] && holds err 'it is no GGUF file' && [ "$(cat notes.gguf)" = 'my notes' ]
ok $? "but not what is no GGUF file"

# ---- what is refused -------------------------------------------------------------------------------

refused() { # status, text, what, arguments of ckpt-merge...
    local want=$1 text=$2 what=$3
    shift 3
    merge "$@" -o refused.gguf
    [ $? = "$want" ] && holds err "$text" && ! compgen -G 'refused.gguf*' >noise
    ok $? "$what"
}
# A folder like tiny whose file, a JSON object, has other values.
changed() { # name, file, sed's script
    rm -rf "$1"
    cp -r tiny "$1"
    sed -i -E "$3" "$1/$2"
}
refused 2 "'q3' is no type of a GGUF file: give one of f32, f16, bf16, q8_0, q4_0, q4_k_m, q6_k" 'an unknown type' \
    tiny --type q3
refused 2 'leave out --dtype' '--dtype' tiny --dtype float16
refused 2 'leave out --dcp, --torch and --all' '--dcp' tiny --dcp
refused 2 'leave out --dcp, --torch and --all' '--all' tiny --all
merge tiny -o elsewhere --type f16
[ $? = 2 ] && holds err 'name an output that ends in .gguf' && [ ! -e elsewhere ]
ok $? '--type without a GGUF file'
cp -r tiny none && rm none/config.json
refused 1 'has no config.json' 'no config.json' none
cp -r tiny mute && rm mute/tokenizer.json
refused 1 'has no tokenizer (tokenizer.json or tokenizer.model), which a GGUF file holds: copy' 'no tokenizer' mute
changed family config.json 's/"model_type": "llama"/"model_type": "mamba"/'
refused 1 "model_type 'mamba' is none that is written as GGUF" 'an unknown family' family
changed pre tokenizer.json 's/"type": "ByteLevel"/"type": "ByteLevels"/'
refused 1 'is not byte-level BPE' 'a tokenizer that is not byte-level' pre
changed prefix tokenizer.json 's/"add_prefix_space": false/"add_prefix_space": true/'
refused 1 'no name in llama.cpp is known for its pre_tokenizer' 'an unknown pre-tokenizer' prefix
changed normalizer tokenizer.json 's/"normalizer": null/"normalizer": {"type": "Lowercase"}/'
refused 1 "normalizer 'Lowercase' cannot be carried" 'an unknown normalizer' normalizer
cp -r tiny broken && head -c 3000 "$TOP/examples/llama-tiny/tokenizer.json" >broken/tokenizer.json
refused 1 'is not valid JSON' 'a broken tokenizer.json' broken
changed fewer config.json 's/"num_hidden_layers": 2/"num_hidden_layers": 1/'
refused 1 "has no place in GGUF's architecture 'llama'" 'more tensors than layers' fewer
changed more config.json 's/"num_hidden_layers": 2/"num_hidden_layers": 3/'
refused 1 "has no tensor 'model.layers.2.input_layernorm.weight'" 'fewer tensors than layers' more
refused 1 "has no tensor 'lm_head.weight'" 'a head that is left out' tiny --exclude lm_head.weight
changed heads config.json 's/"num_attention_heads": 4/"num_attention_heads": 8/'
refused 1 'is not rows of heads as config.json has them' 'another number of heads' heads
changed width config.json 's/"hidden_size": 64/"hidden_size": 32/'
refused 1 'is not an embedding of the width in config.json' 'another width' width
changed scaling config.json 's/"rope_scaling": null/"rope_scaling": {"rope_type": "proportional", "factor": 2.0}/'
refused 1 "rope_scaling has rope_type 'proportional'" 'positions that GGUF cannot carry' scaling
changed dynamic config.json 's/"rope_scaling": null/"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}/'
merge dynamic -o dynamic.gguf && holds err "rope_scaling of type 'dynamic' is not carried"
ok $? 'positions that change with the length of a text are not carried, and a line says so'
yarn='{"rope_type": "yarn", "factor": 2.0, "truncate": false, "original_max_position_embeddings": 16}'
changed truncate config.json "s/\"rope_scaling\": null/\"rope_scaling\": $yarn/; s/\"model_type\": \"llama\"/\"model_type\": \"qwen2\"/"
refused 1 'rope_scaling has truncate false' 'a YaRN that GGUF cannot carry' truncate
changed windows config.json "s/\"rope_scaling\": null/\"rope_scaling\": $yarn/; s/\"model_type\": \"llama\"/\"model_type\": \"ministral\"/"
refused 1 "llama.cpp's 'mimo2' scales the positions of layers without a window alone" 'scaled positions and windows' windows
changed beta config.json 's/"rope_scaling": null/"rope_scaling": {"rope_type": "default"}/; s/"model_type": "llama"/"model_type": "ministral3"/'
refused 1 'rope_scaling has no llama_4_scaling_beta' 'ministral3 without a factor of scores' beta
changed local config.json 's/"model_type": "llama"/"model_type": "olmo3", "rope_parameters": {"full_attention": {"rope_theta": 1000}, "sliding_attention": {"rope_theta": 500}}/'
refused 1 "GGUF's architecture 'olmo2' has one" 'two bases of positions' local
changed wide config.json 's/"model_type": "llama"/"model_type": "qwen2"/; s/"head_dim": 16/"head_dim": 24/'
refused 1 "head_dim is 24: 4 heads of it are not hidden_size" 'heads of another width' wide
changed act config.json 's/"hidden_act": "silu"/"hidden_act": "gelu"/'
refused 1 "hidden_act is 'gelu'" 'another activation' act
changed gemma config.json 's/"model_type": "llama"/"model_type": "gemma2"/; s/"hidden_act": "silu"/"query_pre_attn_scalar": 24/; s/"tie_word_embeddings": false/"tie_word_embeddings": true/'
refused 1 "query_pre_attn_scalar is 24: GGUF has no key for it, and llama.cpp takes 16" "Gemma's own scale of scores" gemma
changed untied config.json 's/"model_type": "llama"/"model_type": "gemma"/; s/"hidden_act": "silu"/"hidden_act": "gelu"/'
refused 1 "tie_word_embeddings is false, and llama.cpp's 'gemma' takes the embedding for the head" 'a head that an architecture lacks' untied
changed capless config.json 's/"model_type": "llama"/"model_type": "gemma2", "final_logit_softcapping": null/; s/"hidden_act": "silu"/"query_pre_attn_scalar": 16/'
refused 1 "final_logit_softcapping is none, and llama.cpp's 'gemma2' always caps" 'a cap that an architecture always has' capless
changed tied config.json 's/"tie_word_embeddings": false/"tie_word_embeddings": true/'
refused 1 "lm_head.weight" 'a head that is said to be the embedding, and is not' tied
cp -r tiny large && sed -i 's/"Ā": 0/"Ā": 4000/' large/tokenizer.json
refused 1 'is beyond the 256 rows of the embedding' 'a tokenizer of another model' large
echo "1..$n"
exit $bad
