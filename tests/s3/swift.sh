#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A real store that refuses If-None-Match (Swift's s3api): that is said once, a second writer of a
# name is kept out by looking, and all else goes as in other stores.
# run: long
# run: timeout=900
if [ -z "${SWIFT_TEST:-}" ]; then
    export SWIFT_TEST=1
    exec "$TOP/tests/s3/lib/swift" run "$0"
fi
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
at=$S3_TEST_URL/swift
run() { "$BIN/$1" "${@:2}" >log 2>err; }

"$BIN/tests/s3/test_save" make "$at/run" >log 2>err
ok $? "four ranks save to it"
run ckpt-verify "$at/run" && run ckpt-info "$at/run" && grep -q 'step-00000007' log
ok $? "which is whole"

# A second writer, later: what is there stays.
run ckpt-merge "$at/run" -o full.safetensors && run ckpt-reshard full.safetensors --world 2 -o "$at/two"
ok $? "a checkpoint of two files"
[ "$(grep -c 'refuses If-None-Match.*never let two jobs write the same checkpoint' err)" = 1 ]
ok $? "said once: $(cat err)"
run ckpt-reshard full.safetensors --world 3 -o "$at/two"
[ $? = 1 ] && grep -q 'already exists' err && run ckpt-verify "$at/two" && run ckpt-diff --model "$at/two" full.safetensors
ok $? "another does not take its name"

# Racers: at least one has it, and what is there in the end is one of theirs, whole.
for i in 1 2 3 4; do
    { "$BIN/ckpt-reshard" -q full.safetensors --world $i -o "$at/raced" >race$i 2>&1; echo $? >status$i; } &
    racers[i]=$!
done
wait "${racers[@]}"
won=$(cat status? | grep -c '^0$')
[ "$won" -ge 1 ] && run ckpt-verify "$at/raced" && run ckpt-diff --model "$at/raced" full.safetensors
ok $? "of four racers $won had the name, and what is there is whole"

run ckpt-cp "$at/run/step-00000007" "$at/copy" && run ckpt-diff "$at/copy" "$at/run"
ok $? "copied: $(cat log)"
run ckpt-merge "$at/run" -o "$at/full.safetensors" && run ckpt-diff --data "$at/full.safetensors" full.safetensors
ok $? "merged there and here: the same"

# Training: saved, ended, resumed.
install -D -m 644 "$TOP/examples/llama-tiny/config.json" model/config.json
seq 2000 >text
cat >run.yaml <<END
model: {path: model, init: random, seed: 1}
data: {path: text, seq_len: 32}
train: {steps: 4, global_batch_size: 2, threads: 1}
optim: {lr: 3.0e-3, schedule: constant}
checkpoint: {path: $at/train, interval: 2, compress: none}
END
run fsdp-launch -n 2 run.yaml train.steps=2 && run fsdp-launch -n 2 run.yaml checkpoint.resume=auto &&
    run fsdp-launch -n 2 run.yaml checkpoint.path=here && run ckpt-diff here "$at/train"
ok $? "resumed from it, training ends with the same bits"

"$BIN/ckpt-info" --gc --older 0s "$at" >log 2>err && "$BIN/ckpt-info" --gc --older 0s --dry-run --json "$at" >log 2>err &&
    grep -q '"remains": \[\]' log && grep -q '"uploads": 0' log
ok $? "gc leaves no remains"
echo "1..$n"
exit $bad
