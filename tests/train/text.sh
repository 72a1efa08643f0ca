#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Text for a model that cannot be meant to read it, data that looks like another format, and what a
# run logs about settings, schedules and speed.
set -u
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/train.sh"

make_input
cp -r model other && rm -f other/tokenizer* && sed -i 's/"vocab_size": *[0-9]*/"vocab_size": 32000/' other/config.json
cat >run.yaml <<'END'
model: {path: model, init: random, seed: 1}
data: {path: text, seq_len: 32}
train: {steps: 2, global_batch_size: 4}
optim: {lr: 1.0e-3, schedule: constant}
END
echo '{"text": "one line of text, and some more of it"}' >text.jsonl
echo '{"prompt": "a question", "completion": "and its answer"}' >prompt.jsonl
echo '{"input_ids": [1, 20000, 3, 31999, 5, 6, 7, 8]}' >ids.jsonl

# ---- text for another vocabulary --------------------------------------------------------------------

refused() { # text, what, arguments...
    local text=$1 what=$2
    shift 2
    run "$@"
    [ $? = 2 ] && holds err "$text"
    ok $? "$what"
}
rule='the model has 32000 tokens, not 256'
refused "$rule" "text for a model of 32,000 tokens" run.yaml model.path=other
ok "$(holds err 'run.yaml:2: data.path'; echo $?)" "the data is named"
refused "$rule" "held-out text, with token ids to train on" run.yaml model.path=other data.format=jsonl \
    data.path=ids.jsonl data.eval_path=text.jsonl data.seq_len=4
for file in text:1:10 prompt:1:1; do
    refused "${file/:/.jsonl:}: text would become tokens byte by byte" "JSON Lines of ${file%%:*}s" run.yaml model.path=other \
        data.format=jsonl data.path=${file%%:*}.jsonl data.seq_len=4
done
touch other/vocab.json
refused "$rule" "the same with vocab.json in the folder" run.yaml model.path=other
rm other/vocab.json
for file in tokenizer.json tokenizer.model; do
    touch other/$file
    refused "other/$file: neither a tokenizer.json" "an empty $file in the folder" run.yaml model.path=other
    run run.yaml model.path=other data.format=jsonl data.path=ids.jsonl data.seq_len=4
    ok $? "token ids are read with it"
    rm other/$file
done
run -n 2 run.yaml model.path=other
ok "$([ $? = 2 ] && [ "$(grep -c "$rule" err)" = 1 ]; echo $?)" "two ranks refuse it once"
run run.yaml model.path=other data.tokenizer=bytes
ok $? "data.tokenizer=bytes trains on it"
run run.yaml model.path=other data.format=jsonl data.path=ids.jsonl data.seq_len=4
ok $? "token ids need no tokenizer"
run run.yaml model.path=model
ok $? "a model of 256 tokens reads bytes"

cp -r "$TOP/examples/llama-tiny" small && sed -i 's/"vocab_size": *[0-9]*/"vocab_size": 100/' small/config.json
refused 'tokens, and the model small has 100 (vocab_size in its config.json)' \
    "a tokenizer with more tokens than the model" run.yaml model.path=small data.cache=cache
ok "$(holds err 'set vocab_size to ' && holds err 'run.yaml:2: data.path' && [ ! -e cache ]; echo $?)" \
    "before anything is tokenized, and what to set"

"$BIN/fsdp-launch" run.yaml model.path=other data.tokenizer=bytes checkpoint.path=ck >/dev/null 2>&1
"$BIN/fsdp-generate" --model ck --prompt ab --max-tokens 2 >log 2>err
ok "$([ $? = 1 ] && holds err "$rule" && holds err 'give token ids with --tokens'; echo $?)" "fsdp-generate has the same rule"
"$BIN/fsdp-generate" --model ck --prompt ab --max-tokens 2 --tokenizer bytes >log 2>err
ok $? "and --tokenizer bytes"
"$BIN/fsdp-generate" --model ck --tokens 1,2 --max-tokens 2 >log 2>err
ok $? "token ids generate"

# ---- data that looks like another format -------------------------------------------------------------

warned() { # text, what, arguments...
    local text=$1 what=$2
    shift 2
    run "$@"
    ok "$(holds err "$text"; echo $?)" "$what"
}
head -c 4000 /dev/zero >zeros && cp text tokens.u16
mkdir mixed && cp text mixed/a.txt && cp zeros mixed/picture.png
warned "zeros holds NUL bytes, and is read as text" "NUL bytes" run.yaml data.path=zeros
warned "picture.png holds NUL bytes" "a picture in a folder of text" run.yaml data.path=mixed
warned "tokens.u16 has the name of a file that is not text" "a file of tokens read as text" run.yaml data.path=tokens.u16
perl -e 'print pack("v*", map { $_ % 200 } 1 .. 4000)' >low.u16
warned "the highest token found is 199, and the model has 32000" "tokens far below the vocabulary" run.yaml \
    model.path=other data.format=u16 data.path=low.u16
perl -e 'print pack("V*", map { $_ % 256 } 1 .. 4000)' >wide.u32
warned "as if 32-bit tokens were read as 16-bit ones" "32-bit tokens read as 16-bit ones" run.yaml data.format=u16 data.path=wide.u32
echo '{"input_ids": [1, 2, 3, 4, 5, 6, 7, 8]}' >low.jsonl
warned "the highest token found is 8" "token ids of JSON Lines far below the vocabulary" run.yaml model.path=other \
    data.format=jsonl data.path=low.jsonl data.seq_len=4
cp -r model narrow && sed -i 's/"vocab_size": *[0-9]*/"vocab_size": 110/' narrow/config.json
tr -cd 'a-l ' <text >few && "$BIN/fsdp-tokenize" few -o few.u16 --tokenizer bytes >log 2>err
run -n 2 run.yaml model.path=narrow data.format=u16 data.path=few.u16
ok "$([ $? = 0 ] && [ "$(grep -c 'few.u16: its tokenizer has 256 tokens, and the model 110' err)" = 1 ]; echo $?)" \
    "a token file of a larger vocabulary is told once"
run run.yaml
ok "$([ ! -s err ]; echo $?)" "plain text warns of nothing"
perl -e 'srand 1; print pack("v*", map { int rand 32000 } 1 .. 4000)' >good.u16
run run.yaml model.path=other data.format=u16 data.path=good.u16
ok "$([ ! -s err ]; echo $?)" "tokens of the whole vocabulary warn of nothing"

# ---- settings without effect, lists, schedules --------------------------------------------------------

for setting in 'fsdp.two_level=true fsdp.sharding_strategy=NO_SHARD' 'fsdp.reshard_after_forward=true fsdp.sharding_strategy=NO_SHARD' \
    'fsdp.wrap_modules=[model.layers.0]'; do
    warned "has no effect while fsdp." "${setting%%=*} without effect" -n 2 run.yaml $setting
done
for setting in lora.alpha=3 lora.dora=true 'lora.targets=[foo]' 'lora.modules_to_save=[lm_head]' lora.rslora=true; do
    warned "${setting%%=*} has no effect while lora.r is 0" "$setting without adapters" run.yaml "$setting"
done
warned "data.train_on has no effect while data.format is text" "data.train_on of plain text" run.yaml data.train_on=last
cp -r model strange && sed -i 's/"vocab_size"/"eos_token_id": 999, "vocab_size"/' strange/config.json
run -n 2 run.yaml model.path=strange
ok "$([ $? = 0 ] && [ "$(grep -c "its eos_token_id 999 is none of the model's 256 tokens" err)" = 1 ]; echo $?)" \
    "an end token that the model lacks is told once"
warned "fsdp.two_level has no effect" "two levels on one node" -n 2 run.yaml fsdp.two_level=true
warned "4 units cannot be gathered ahead while fsdp.limit_all_gathers is 1" "prefetch beyond the limit" -n 2 run.yaml \
    fsdp.forward_prefetch=4 fsdp.limit_all_gathers=1
run run.yaml "optim.groups=['*mlp*: betas=0.8,0.99', \"*norm*: weight_decay=0\"]" --print-config
ok "$(holds log '["*mlp*: betas=0.8,0.99", "*norm*: weight_decay=0"]'; echo $?)" "commas inside quotes do not divide a list"
refused 'begins a list and does not end it' "a list without its end" run.yaml "optim.groups=['*mlp*: lr=1', b"
run run.yaml checkpoint.path=grow && run run.yaml checkpoint.path=grow train.steps=4
ok "$(holds log 'resumes from' && ! grep -q 'schedule' log err; echo $?)" "a constant rate does not change with the number of steps"
run run.yaml checkpoint.path=grow train.steps=6 optim.lr=2.0e-3
ok "$(grep -q "learning rate's schedule differs" log err; echo $?)" "another rate is logged"

# ---- speed ----------------------------------------------------------------------------------------------

run run.yaml log.metrics=m.jsonl
ok "$(grep -q -E '^step 1/[0-9]+  loss [0-9.]+  lr [0-9.e-]+  [0-9][0-9,.]* tok/s  [0-9]+s left$' log; echo $?)" "rates and the time left are shown"
ok "$(grep -q -E '"tflops": [0-9.e-]+, "step_s"' m.jsonl && ! grep -q MFU log; echo $?)" "no MFU where the peak is not known"
run -v run.yaml log.metrics=m2.jsonl train.peak_tflops=0.5
ok "$(grep -q -E '  norm [0-9.]+  .* TFLOP/s  MFU [0-9.]+%  [0-9.]+ MiB  ' log; echo $?)" "MFU with train.peak_tflops, and more with -v"
# Per token 6 * (2 layers * (weights + attention) + head): q and o 64 x 64, k and v 64 x 32, three of
# 64 x 176; causal attention over 32 tokens, of which one sees 16.5 as a mean, 33 * 64; the head 64 x 256.
flops=$((6 * (2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 176 + 33 * 64) + 64 * 256)))
far() { # file, ranks: the worst relative error of tflops and mfu
    awk -v flops=$flops -v ranks=$2 'function value(key) { return match($0, "\"" key "\": [0-9.e-]+") ? substr($0, RSTART + length(key) + 4, RLENGTH - length(key) - 4) + 0 : -1 }
        { f = value("tokens_per_s") * flops / ranks / 1e12; a = value("tflops") / f - 1; b = value("mfu") / (f / 0.5) - 1 }
        { if (a * a > bad) bad = a * a; if (b * b > bad) bad = b * b } END { exit !(NR && bad < 1e-12) }' "$1"
}
far m2.jsonl 1
ok $? "TFLOP/s are the model's operations, MFU their share of the peak"
run -n 2 run.yaml log.metrics=m3.jsonl train.peak_tflops=0.5 && far m3.jsonl 2
ok $? "of two ranks, each one's"

echo "1..$n"
exit $bad
