#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# ckpt-merge --check: a model that fits its config.json, and each way in which one does not, by tensor and file.
# tests/interop/check.sh has every family.
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
check() { "$BIN/ckpt-merge" --check "$@" >log 2>err </dev/null; }
merge() { "$BIN/ckpt-merge" "$@" --quiet >log 2>err </dev/null; }
holds() { grep -q -F -- "$2" "$1"; }
fine() { # folder, text of the line, description
    check "$1" && holds log "$2" && [ ! -s err ]
    ok $? "$3: $(cat log)"
}
# As many lines as texts: each line has one.
wrong() { # folder, description, texts...
    local folder=$1 what=$2 text
    shift 2
    check "$folder"
    local status=$?
    local good=$([ $status = 1 ] && [ "$(wc -l <err)" = $# ] && holds log "$# mismatch" && echo yes)
    for text in "$@"; do
        holds err "$text" || good=
    done
    [ -n "$good" ]
    ok $? "$what: $(head -n 1 err)"
}
changed() { # folder, sed's script for config.json
    rm -rf "$1"
    cp -r tiny "$1"
    sed -i -E "$2" "$1/config.json"
}
install -D -m 644 -t tiny "$TOP/tests/data/llama-tiny"/{config.json,model.safetensors}

# ---- what is right -------------------------------------------------------------------------------

fine tiny "OK: 21 tensors, as config.json has them of a model of type 'llama'" 'a folder'
fine tiny/model.safetensors 'OK: 21 tensors, as config.json has them' 'a file next to its config.json'
fine "$TOP/tests/data/gpt2-tiny" "of type 'gpt2'" 'GPT-2, with tied weights'
merge tiny -o half --dtype bfloat16 --max-shard-size 100K && fine half 'OK: 21 tensors' 'a merge with an index, cast'
merge tiny -o bin --torch && fine bin 'OK: 21 tensors' 'a folder of pytorch_model.bin'
"$BIN/ckpt-reshard" tiny -o native --world 3 --quiet >log 2>err && fine native 'OK: 21 tensors' 'a checkpoint for three ranks'
check --json half && holds log '"ok": true' && holds log '"family": "llama"' && holds log '"compared": "family"' && holds log '"mismatches": []'
ok $? '--json'
changed tied 's/"tie_word_embeddings": false/"tie_word_embeddings": true/'
fine tied 'OK: 21 tensors' 'a tied head that is stored, too'
merge tied -o tied-out --exclude lm_head.weight && fine tied-out 'OK: 20 tensors' 'a tied head that is not'

# ---- where only headers can be compared ----------------------------------------------------------

changed unknown 's/"llama"/"mamba"/'
fine unknown "names and shapes are not compared: the tensors of model_type 'mamba' are not known" 'an unknown family'
merge tiny -o mixed --dtype bfloat16 --exclude model.norm.weight
merge tiny -o mixed/model-norm.safetensors --include model.norm.weight
sed -i 's/"llama"/"mamba"/' mixed/config.json
fine mixed "the tensors of model_type 'mamba' are not known" 'an unknown family that keeps a tensor in another type'
changed quantized 's/^\{/{"quantization_config": {"quant_method": "fp8"},/'
fine quantized 'not compared: the model is quantized' 'a quantized model'
changed bare '' && rm bare/config.json
fine bare 'not compared: there is no config.json' 'no config.json'
fine half/model-00001-of-0000*.safetensors 'this is one of several files' 'one part of several'
check unknown --json && holds log '"compared": "headers"' && holds log "'mamba' are not known"
ok $? 'and so does --json'

# ---- what is wrong -------------------------------------------------------------------------------

merge tiny -o less --exclude model.layers.1.mlp.up_proj.weight --exclude lm_head.weight
wrong less 'missing tensors' "tensor 'lm_head.weight' of shape [" "tensor 'model.layers.1.mlp.up_proj.weight' of shape ["
echo 'model.norm.weight -> model.normal.weight' >map
merge tiny -o renamed --map map
wrong renamed 'a tensor of another name' "'model.norm.weight' of shape [64] is missing" \
    "tensor 'model.normal.weight' in 'model.safetensors' is not one that a model of type 'llama' has"
changed integers '' && sed -i '1s/"F32"/"I32"/' integers/model.safetensors
wrong integers 'integers' "in 'model.safetensors' is I32, which is no type of weights"
changed vocab 's/"vocab_size": [0-9]+/"vocab_size": 300/'
wrong vocab 'another vocabulary' "tensor 'model.embed_tokens.weight' in 'model.safetensors' has shape [" "'lm_head.weight'"
changed layers 's/"num_hidden_layers": 2/"num_hidden_layers": 1/'
check layers
[ $? = 1 ] && [ "$(grep -c "tensor 'model.layers.1..*is not one that" err)" = 9 ] && [ "$(wc -l <err)" = 9 ]
ok $? "a layer more than config.json has"
changed bias 's/"attention_bias": false/"attention_bias": true/'
check bias
[ $? = 1 ] && [ "$(grep -c "_proj.bias' of shape .* is missing" err)" = 8 ]
ok $? "biases that config.json asks for"
changed dtype 's/"(torch_dtype|dtype)": "[a-z0-9]+"/"\1": "float16"/'
wrong dtype 'another dtype' "says torch_dtype 'float16'; all 21 tensors are float32"
sed -i 's/"llama"/"mamba"/' dtype/config.json
wrong dtype 'another dtype of an unknown family' "says torch_dtype 'float16'; all 21 tensors are float32"
for word in '"folat32"' '"int8"' 16 '{"a": 1}'; do
    changed nonsense "s/\"(torch_dtype|dtype)\": \"[a-z0-9]+\"/\"torch_dtype\": $word/"
    wrong nonsense "a type that is none, $word" "config.json says torch_dtype ${word// /}, which is no type of weights"
done
changed two 's/"(torch_dtype|dtype)": "[a-z0-9]+"/"torch_dtype": "float32", "dtype": "bfloat16"/'
wrong two 'two types' "config.json says dtype 'bfloat16', and torch_dtype 'float32'" "all 21 tensors are float32"
changed spelled 's/"(torch_dtype|dtype)": "[a-z0-9]+"/"torch_dtype": "torch.float32"/'
fine spelled 'OK: 21 tensors' 'torch.float32'
changed auto 's/"(torch_dtype|dtype)": "[a-z0-9]+"/"torch_dtype": "auto"/'
fine auto 'OK: 21 tensors' 'auto'
changed nonsense-quantized 's/^\{/{"quantization_config": {"quant_method": "fp8"},/; s/"(torch_dtype|dtype)": "[a-z0-9]+"/"torch_dtype": "folat32"/'
wrong nonsense-quantized 'nor of a quantized model' "which is no type of weights"
changed twice 's/^\{/{"vocab_size": 1,/'
wrong twice 'a config.json that is no JSON' 'config.json is not valid JSON'
changed broken 's/"vocab_size": [0-9]+,//'
wrong broken 'no vocab_size' "config.json: it has no vocab_size, which a model of type 'llama' needs"
cp -r half total && sed -i -E 's/("total_size": )[0-9]+/\1 7/' total/model.safetensors.index.json
wrong total 'a wrong total_size' 'says a total_size of 7 bytes; the tensors have'
merge tiny -o parts --torch --max-shard-size 100K
wrong_total() { sed -i -E "s/(\"total_size\": )[0-9]+/\\1$2/" "$1/pytorch_model.bin.index.json"; }
fine parts 'OK: 21 tensors' 'files of PyTorch with an index'
cp -r parts parts-total && wrong_total parts-total 7
wrong parts-total 'a wrong total_size of pytorch_model.bin.index.json' "'pytorch_model.bin.index.json' says a total_size of 7 bytes; the tensors have"

# ---- weights that are missing, at the other tools -------------------------------------------------

# Without the tensors of one of its files, index included.
run() { "$BIN/$@" >log 2>err </dev/null; }
cut() { # folder, name of the index
    local lost=$(ls "$1" | grep -E -- '-00002-of-')
    rm "$1/$lost" && sed -i "/$lost/d" "$1/$2" && sed -i -z 's/",\n  }/"\n  }/' "$1/$2"
}
lacks() { holds err "says a total_size of" && holds err "are missing, or its total_size is wrong"; }
cp -r half short && cut short model.safetensors.index.json
cp -r parts short-bin && cut short-bin pytorch_model.bin.index.json
for folder in short short-bin; do
    run ckpt-verify $folder
    [ $? = 1 ] && lacks && holds err '1 fault' && run ckpt-merge $folder -o $folder.safetensors && lacks
    ok $? "$folder, an index without the tensors of a file: an error of ckpt-verify, and a warning of a merge"
done
holds err "lacks" && holds err "that a model of type 'llama' has, such as '"
ok $? "and a merge names a tensor that config.json has: $(tail -n 1 err)"
run ckpt-verify short --json
[ $? = 1 ] && holds log '"whole": false'
ok $? '--json'
run ckpt-verify half && run ckpt-merge half -o half.safetensors && ! holds err lacks
ok $? 'a whole folder gives no warning'
bytes() { sed -n 's/.*"total_size": \([0-9]*\).*/\1/p' half/model.safetensors.index.json; }
counted() { # what is said, total_size, sed's script for config.json, status of ckpt-verify
    rm -rf counted && cp -r half counted && sed -i -E "s/(\"total_size\": )[0-9]+/\1$2/" counted/model.safetensors.index.json
    sed -i -E "$3" counted/config.json
    run ckpt-verify counted
    [ $? = "$4" ]
    ok $? "total_size: $1"
}
head=$((2 * 64 * $(sed -n 's/.*"vocab_size": \([0-9]*\).*/\1/p' half/config.json)))
counted 'of another type' $((2 * $(bytes))) '' 0
counted 'too small' $(($(bytes) - 100)) '' 0
counted 'a tied head counted twice' $(($(bytes) + head)) 's/"tie_word_embeddings": false/"tie_word_embeddings": true/' 0
counted 'a head that is not tied' $(($(bytes) + head)) '' 1
counted 'a quantized model' $(($(bytes) + 100)) 's/^\{/{"quantization_config": {},/' 0
counted 'too large' $(($(bytes) + 100)) '' 1
cp -r half nameless && rm nameless/model.safetensors.index.json nameless/*-00002-of-* && i=0
for file in nameless/*.safetensors; do mv "$file" nameless/part-$((i++)).safetensors; done
run ckpt-merge nameless -o nameless.safetensors && holds err "that a model of type 'llama' has, such as '"
ok $? "files without an index, one missing: $(tail -n 1 err)"
run ckpt-verify nameless && holds log 'it cannot be known' && ! holds log complete && run ckpt-verify nameless --json && holds log '"whole": null'
ok $? "ckpt-verify does not say that they are complete: $(head -c 200 log)"
run ckpt-merge nameless -o norm.safetensors --include model.norm.weight && ! holds err lacks
ok $? 'a merge of some tensors gives no warning'
changed classifier 's/LlamaForCausalLM/LlamaForSequenceClassification/'
merge classifier -o classifier-out --exclude lm_head.weight && run ckpt-merge classifier-out -o classifier.safetensors && ! holds err lacks
ok $? 'nor does a classifier without a head for text'

cp -r half misplaced && sed -i 's/\("lm_head.weight": "model-0000\)./\17/' misplaced/model.safetensors.index.json
check misplaced
[ $? = 1 ] && holds err 'lm_head.weight' || holds err 'model-00007'
ok $? "an index that places a tensor elsewhere: $(tail -n 1 err)"
check misplaced --json
[ $? = 1 ] && holds log '"ok": false' && holds log '"text"'
ok $? 'and so does --json'
check vocab --json
[ $? = 1 ] && holds log '"tensor": "lm_head.weight"' && holds log '"file": "model.safetensors"'
ok $? '--json names tensor and file'
check nowhere
[ $? = 1 ] && holds err nowhere
ok $? "nothing there: $(tail -n 1 err)"
check tiny -o x
[ $? = 2 ] && holds err 'leave out -o' && [ ! -e x ]
ok $? 'with an output'
for option in '--average' '--watch' '--adapter tiny' '--dtype float16' '--map fuse-qkv' '--heads 4x2' '--overwrite' '--dry-run' \
    '--max-shard-size 1G' '--dcp' '--torch' '--no-card' '--type f16' '--quantize w8a16' '--quantize-ignore x' '--all' '--ema' \
    '--include *' '--exclude x'; do
    read -r -a words <<<"$option"
    check tiny "${words[@]}"
    [ $? = 2 ] && holds err "leave out ${words[0]}"
    ok $? "refused: ${words[0]}, which means nothing with it"
done
mkdir alone configured && cp tiny/model.safetensors alone && sed 's/"num_hidden_layers": [0-9]*/"num_hidden_layers": 1/' tiny/config.json >configured/config.json
check alone --config tiny && holds log "OK: 21 tensors, as config.json has them of a model of type 'llama'"
ok $? "--config names the model: $(cat log)"
check alone --config configured/config.json
[ $? = 1 ] && holds err model.layers.1
ok $? "and another one: $(head -n 1 err)"
echo "1..$n"
exit $bad
