#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# ckpt-merge --average: of a run's checkpoints and of other formats, in every output, resumed, damaged, refused.
# tests/interop/average.sh compares the values with torch.
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/train.sh"
make_input
cat >run.yaml <<'END'
model: {path: model, init: random, seed: 1}
data: {path: text, seq_len: 32}
train: {steps: 3, global_batch_size: 6, seed: 2}
optim: {lr: 3.0e-2, schedule: constant, ema_decay: 0.9}
checkpoint: {path: ck, interval: 1}
log: {metrics: ''}
END
run -n 2 run.yaml
ok $? "a run saves three checkpoints"
ck() { printf 'ck/step-0000000%s' "$1"; }
a=$(ck 1) b=$(ck 2) c=$(ck 3)
merge() { "$BIN/ckpt-merge" "$@" --quiet >log 2>err; }
refused() { # status, text, arguments: refused so, and nothing is written
    rm -rf never
    "$BIN/ckpt-merge" "${@:3}" -o never >log 2>err
    [ $? = "$1" ] && grep -q -F -- "$2" err && [ ! -e never ] && ! compgen -G 'never.tmp.*' >noise
}

merge --average $a $b $c -o abc.safetensors && merge --average $c $a $b -o cab.safetensors && cmp abc.safetensors cab.safetensors
ok $? "of three, in any order"
merge --average $a=0.25 $b=0.25 $c=0.25 -o equal.safetensors && cmp abc.safetensors equal.safetensors
ok $? "equal weights are divided by their sum"
merge --average $a $a $a -o aaa.safetensors && merge $a -o a.safetensors && "$BIN/ckpt-diff" a.safetensors aaa.safetensors >log 2>err
ok $? "of one, three times: it"
merge --average $a=1 $b=0 -o ab.safetensors && "$BIN/ckpt-diff" a.safetensors ab.safetensors >log 2>err
ok $? "a weight of 0"
"$BIN/ckpt-diff" a.safetensors abc.safetensors >log 2>err
ok "$([ $? = 1 ]; echo $?)" "the average is another model"

merge $b -o b/ && merge $c -o c --dcp && "$BIN/ckpt-merge" --average $a b c -o mixed.safetensors >log 2>err &&
    "$BIN/ckpt-diff" abc.safetensors mixed.safetensors >log 2>err
ok $? "of three formats"
merge --average $a $b $c -o folder/ --max-shard-size 300K && [ -s folder/config.json ] && [ "$(ls folder/*.safetensors | wc -l)" -gt 1 ] &&
    "$BIN/ckpt-diff" abc.safetensors folder >log 2>err
ok $? "a folder of several files, with config.json"
merge --average $a $b $c -o dcp/ --dcp && "$BIN/ckpt-diff" --model abc.safetensors dcp >log 2>err
ok $? "for torch.distributed.checkpoint"
merge --average $a $b $c -o small.safetensors --mem 1M --threads 3 && cmp abc.safetensors small.safetensors
ok $? "in little memory"
merge --average $a $b $c -o wide.safetensors --dtype float64 && merge wide.safetensors -o back.safetensors --dtype float32 &&
    "$BIN/ckpt-diff" abc.safetensors back.safetensors >log 2>err
ok $? "in fp64, rounded later"
printf '%s\n' 'model.** -> $1' >map
merge --average $a $b $c -o mapped.safetensors --map map && merge abc.safetensors --map map -o later.safetensors &&
    "$BIN/ckpt-diff" mapped.safetensors later.safetensors >log 2>err
ok $? "with a map"
merge --ema $a -o ea.safetensors && merge --ema $b -o eb.safetensors && merge --average ea.safetensors eb.safetensors -o e1.safetensors &&
    merge --average --ema $a $b -o e2.safetensors && "$BIN/ckpt-diff" e1.safetensors e2.safetensors >log 2>err
ok $? "of moving averages"

run -n 2 run.yaml model.path=folder model.init=pretrained checkpoint.path=lora lora.r=4 train.steps=1 optim.ema_decay=0
ok $? "a run trains an adapter of the average"
merge --average $a $b $c --adapter lora -o with.safetensors && merge folder --adapter lora -o then.safetensors &&
    "$BIN/ckpt-diff" with.safetensors then.safetensors --atol 1e-7 >log 2>err
ok $? "with an adapter"

# ---- what is said of it --------------------------------------------------------------------------

number() { sed -n "s/^ \"$1\": \([0-9]*\).*/\1/p" log; }
"$BIN/ckpt-merge" $a -o dry --dry-run --json >log 2>err && one=$(number bytes_read) &&
    "$BIN/ckpt-merge" --average $a $b $c -o dry --dry-run --json >log 2>err && [ "$(number bytes_read)" = $((3 * one)) ]
ok $? "the bytes that are read are those of all three: 3 * $one"
merge $b -o half.safetensors --dtype bfloat16 && "$BIN/ckpt-merge" --average $a half.safetensors -o two.safetensors --json >log 2>err &&
    [ "$(number bytes_read)" = $((one + one / 2)) ]
ok $? "of which one has half as many"
card() { grep -q -x -F -- "| $2 |" "$1/README.md"; }
card folder 'average of | step-00000001' && card folder 'and | step-00000002' && card folder 'and | step-00000003' && ! grep -q '^| step' folder/README.md
ok $? "the card names them, and no step"
merge --average $a=2 $b=0.5 $c -o weighted && card weighted 'average of | step-00000001, weight 2' &&
    card weighted 'and | step-00000002, weight 0.5' && card weighted 'and | step-00000003'
ok $? "with weights that are not 1"

# ---- interrupted ---------------------------------------------------------------------------------

for at in 180 210; do
    rm -rf resumed resumed.tmp.*
    CKPT_FAULT=kill:$at "$BIN/ckpt-merge" --average $a $b $c -o resumed --max-shard-size 100K --mem 1M --threads 1 --quiet 2>err
    ok "$([ ! -e resumed ] && compgen -G 'resumed.tmp.*' >noise; echo $?)" "killed at call $at"
    "$BIN/ckpt-merge" --average $a $c $b -o resumed --max-shard-size 100K --mem 1M --threads 1 --json >log 2>err &&
        ! grep -q '"bytes_resumed": 0,' log && "$BIN/ckpt-diff" abc.safetensors resumed >log 2>err
    ok $? "and resumed, with the others in another order"
done

# ---- refused -------------------------------------------------------------------------------------

merge $b --exclude 'model.norm.weight' -o less.safetensors
refused 1 "tensor 'model.norm.weight' is in '$a', and not in 'less.safetensors'" --average $a less.safetensors
ok $? "a tensor that the second lacks: $(cat err)"
refused 1 "tensor 'model.norm.weight' is in '$a', and not in 'less.safetensors'" --average less.safetensors $a
ok $? "or the first"
merge --average $a less.safetensors --exclude model.norm.weight -o both.safetensors
ok $? "and is left out"
header='{"model.norm.weight":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
printf "\\$(printf %o ${#header})\\0\\0\\0\\0\\0\\0\\0%s\\0\\0\\0\\0" "$header" >shape.safetensors
refused 1 "tensor 'model.norm.weight': '$a' holds it as [0:64], 'shape.safetensors' as [0:1]" --average $a shape.safetensors --include model.norm.weight
ok $? "another shape: $(cat err)"
for value in 1 2; do
    header='{"count":{"dtype":"I32","shape":[1],"data_offsets":[0,4]}}'
    printf "\\$(printf %o ${#header})\\0\\0\\0\\0\\0\\0\\0%s\\$value\\0\\0\\0" "$header" >count$value.safetensors
done
merge --average count1.safetensors count1.safetensors -o count.safetensors && "$BIN/ckpt-diff" count.safetensors count1.safetensors >log 2>err
ok $? "integers that are equal"
refused 1 "tensor 'count' is of I32" --average count1.safetensors count2.safetensors
ok $? "and that are not: $(cat err)"
refused 1 'sum above 0' --average $a=1 $b=-1
ok $? "weights without a sum: $(cat err)"
refused 1 'its weight must be finite' --average $a=inf $b
ok $? "an infinite weight"
refused 2 'leave out --all' --average $a $b --all
ok $? "with the optimizer's state"
refused 2 'exactly one checkpoint' $a $b
ok $? "two checkpoints and no --average"
"$BIN/ckpt-merge" --average $a b -o b --overwrite >log 2>err
ok "$([ $? = 1 ] && "$BIN/ckpt-diff" --model b $b >log 2>>err; echo $?)" "an output that is an input"

merge --average $a=3 $b=1 -o three.safetensors && merge --average $a=1.5e308 $b=0.5e308 -o huge.safetensors &&
    merge --average $a=3e-308 $b=1e-308 -o tiny.safetensors && "$BIN/ckpt-diff" --ulp 1 three.safetensors huge.safetensors >log 2>err && "$BIN/ckpt-diff" --ulp 1 three.safetensors tiny.safetensors >log 2>err
ok $? "weights that would overflow"
for dtype in float32 bfloat16; do
    for scheme in fp8_dynamic fp8_tensor w8a16_channel; do
        rm -rf of-average of-it average
        merge --average $a $b=3 -o average --dtype $dtype && merge average -o of-it --quantize $scheme &&
            merge --average $a $b=3 -o of-average --dtype $dtype --quantize $scheme && "$BIN/ckpt-diff" of-it of-average >log 2>err
        ok $? "quantized: $scheme of $dtype"
    done
done

cp -r $c damaged
file=$(ls damaged/model/* | head -n 1)
at=$(stat -c %s "$file")
printf '\377' | dd of="$file" bs=1 seek=$((at - 100)) conv=notrunc status=none
refused 1 "file '$PWD/damaged/" --average $a $b "$PWD/damaged"
ok $? "a damaged checkpoint is named: $(cat err)"
echo "1..$n"
exit $bad
