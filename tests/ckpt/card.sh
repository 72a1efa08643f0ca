#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A merged folder is ready to serve: the files next to the weights, config.json's dtype, and a model card that says what
# is known, which is not overwritten once somebody changed it. What is missing is said.
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/train.sh"
merge() { "$BIN/ckpt-merge" "$@" >log 2>err </dev/null; }
has() { grep -q -x -F -- "$2" "$1/README.md"; }
tiny=$TOP/tests/data/llama-tiny

install -D -m 644 -t tiny "$tiny"/{config.json,model.safetensors} "$TOP/examples/llama-tiny/tokenizer.json"
echo '{"eos_token_id": 2}' >tiny/generation_config.json
echo '{{ messages }}' >tiny/chat_template.jinja
echo '{}' >tiny/tokenizer_config.json
merge tiny -o full --dtype bfloat16 && [ "$(cd full && echo *)" = "README.md chat_template.jinja config.json generation_config.json model.safetensors tokenizer.json tokenizer_config.json" ] &&
    holds full/config.json '"bfloat16"' && ! holds err tokenizer
ok $? "configuration, generation settings, tokenizer and chat template go along"
{ has full '| family | llama |' && has full '| class | LlamaForCausalLM |' && has full '| parameters | 125,248 |' &&
    has full '| dtype | bfloat16 |' && has full '| checkpoint | tiny |' && has full 'library_name: transformers' &&
    has full 'pipeline_tag: text-generation' && has full '- llama' && ! holds full/README.md base_model; } >log 2>err
ok $? "the card says what is known, and no base model where none is"
merge tiny -o again --dtype bfloat16 --mem 1M --threads 1 && diff -r full again >>log
ok $? "the same again"
cp -r tiny bare && rm bare/tokenizer*.json
merge bare -o bare-out && holds err "'bare' has no tokenizer, and neither has 'bare-out'"
ok $? "a missing tokenizer is said: $(tail -n 1 err)"
rm bare/config.json
merge bare -o bare-out2 && holds err "'bare' has no config.json" && has bare-out2 '| dtype | float32 |' && ! holds bare-out2/README.md pipeline_tag
ok $? "and a missing config.json"
merge tiny -o none --no-card && [ ! -e none/README.md ]
ok $? "--no-card leaves it out"
merge tiny -o x.safetensors && [ ! -e README.md ]
ok $? "a single file has none"
merge tiny -o bin --torch && has bin '| family | llama |'
ok $? "a folder of pytorch_model.bin has one"

# ---- the base model ------------------------------------------------------------------------------

base() { # _name_or_path of config.json -> the card's base_model, or nothing
    rm -rf named named-out
    cp -r tiny named
    sed -i "s|^{|{\"_name_or_path\": \"$1\",|" named/config.json
    merge named -o named-out && sed -n 's/^base_model: //p' named-out/README.md
}
[ "$(base meta-llama/Llama-3.1-8B)" = meta-llama/Llama-3.1-8B ] && has named-out '| base model | meta-llama/Llama-3.1-8B |'
ok $? "a name on the Hub"
[ -z "$(base /data/my_models/llama)" ] && has named-out '| base model | llama |' && ! holds named-out/README.md my_models
ok $? "of a path the last part, which is none on the Hub"
[ -z "$(base models/llama)" ] && mkdir -p own && cp -r tiny own/model && [ -z "$(base own/model)" ]
ok $? "nor is a folder"
[ "$(base /home/x/.cache/huggingface/hub/models--org--name-1.5/snapshots/0123abc)" = org/name-1.5 ]
ok $? "the Hub's cache has it in its path"
[ -z "$(base 'a: b/c')" ] && [ -z "$(base 'a/b\\n---')" ]
ok $? "what YAML would read otherwise is none"
long=$(printf 'n%.0s' $(seq 300))
for name in "$long--x" "x--$long" "$long--$long" 'a: b--x' 'x--b #c'; do
    [ -z "$(base "models--$name/snapshots/r")" ] && has named-out '| family | llama |'
    ok $? "nor in the cache's path what is too long, or no name: ${name:0:7}"
done

# ---- from runs -----------------------------------------------------------------------------------

make_input
cat >run.yaml <<END
model: {path: model, init: random, seed: 1}
data: {path: text, seq_len: 32}
train: {steps: 2, global_batch_size: 4, seed: 2}
checkpoint: {path: saved, interval: 2, fsync: false}
log: {metrics: ''}
END
run -n 2 run.yaml && merge saved -o run-out && has run-out '| step | 2 |' && has run-out '| checkpoint | step-00000002 |' && holds log run-out
ok $? "a checkpoint of a run: its step"
cat >>run.yaml <<END
lora: {r: 4}
END
sed -i 's/^model:.*/model: {path: run-out}/; s/path: saved/path: lora/' run.yaml
run -n 2 run.yaml && merge --adapter lora run-out -o adapted && has adapted '| adapter | step-00000002 |' && has adapted '| base model | run-out |'
ok $? "with an adapter: it, and the model that it was made for"

# ---- a card that somebody changed ----------------------------------------------------------------

merge tiny -o full --dtype float16 --overwrite && has full '| dtype | float16 |'
ok $? "--overwrite replaces a card as it was written"
echo 'Trained on my notes.' >>full/README.md
cp full/README.md mine
merge tiny -o full --overwrite
[ $? = 1 ] && holds err README.md && cmp full/README.md mine >>log && holds full/config.json '"float16"'
ok $? "but nothing where somebody has changed it: $(tail -n 1 err)"
mkdir users && echo 'My model' >users/README.md
merge tiny -o users
[ $? = 1 ] && [ "$(cat users/README.md)" = 'My model' ] && [ ! -e users/config.json ]
ok $? "nor is one replaced that was there before"
killed=0 whole=0
for at in 20 26 30 34 38 42 46; do
    rm -rf out out.tmp.*
    { CKPT_FAULT=kill:$at merge tiny -o out --dtype bfloat16 && continue; } 2>noise
    killed=$((killed + 1))
    [ -e out ] || merge tiny -o out --dtype bfloat16
    diff -r out again >>log && ! compgen -G 'out.tmp.*' >noise && whole=$((whole + 1))
done
[ $killed -ge 3 ] && [ $killed = $whole ]
ok $? "after a kill at $killed moments the same command completes ($whole)"
echo "1..$n"
exit $bad
