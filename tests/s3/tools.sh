#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The tools from store to store, without the local disk: what comes out is what went in.
# run: timeout=600
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
at=$S3_TEST_URL/tools-$$
run() { "$BIN/$@" >log 2>err; }

# A checkpoint of four ranks, with optimizer and configuration, as fsdp-launch would have saved it.
"$BIN/tests/s3/test_save" make "$at/run" >log 2>err
ok $? "four ranks save to the store"
run ckpt-verify "$at/run"
ok $? "which is whole"
run ckpt-info "$at/run" && grep -q 'step-00000007' log
ok $? "the newest of a root is found"

run ckpt-reshard "$at/run/step-00000007" --world 3 -o "$at/n3" && run ckpt-verify "$at/n3"
ok $? "reshard to three ranks"
run ckpt-reshard "$at/n3" --world 4 -o "$at/n4" && run ckpt-diff "$at/n4" "$at/run"
ok $? "and back: the same"
run ckpt-merge "$at/run" -o "$at/full.safetensors" && run ckpt-merge "$at/n3" -o local.safetensors &&
    run ckpt-diff "$at/full.safetensors" local.safetensors
ok $? "merged in the store and here: the same"
run ckpt-merge "$at/run" -o "$at/hf" --max-shard-size 4M && run ckpt-diff --model "$at/hf" "$at/run" &&
    run ckpt-merge "$at/run" --dcp --all -o "$at/dcp" && run ckpt-diff "$at/dcp" "$at/hf" --include 'model.*'
ok $? "a Hugging Face folder, and torch's"
run ckpt-reshard local.safetensors --world 2 -o "$at/up" && run ckpt-merge "$at/up" -o down.safetensors &&
    run ckpt-diff --data down.safetensors local.safetensors
ok $? "up and down again: the same"

run ckpt-reshard "$at/run" --world 3 -o "$at/n3"
[ $? = 1 ] && grep -q 'already exists' err
ok $? "an existing output is not overwritten"
run ckpt-reshard "$at/run" --world 2 -o "$at/n3" --overwrite && run ckpt-verify "$at/n3"
ok $? "unless that is wanted"
run ckpt-merge "$at/run" -o "$at/hf" --overwrite
[ $? = 1 ] && grep -q 'cannot replace a folder' err
ok $? "a folder is not replaced by halves"
run ckpt-reshard "$at/run" --world 3 --mem 32M -o "$at/small" && run ckpt-verify "$at/small"
ok $? "in 32 MiB"
run ckpt-info "$at/nothing"
[ $? = 1 ] && grep -q 'nothing.*no such object' err
ok $? "what is not there"


# A merge that fails takes away what it wrote; a torch folder has no model card, so that this one is somebody's.
aws() { AWS_DEFAULT_REGION=us-east-1 timeout 120 "$S3_PYTHON" -m awscli --endpoint-url "$AWS_ENDPOINT_URL" "$@" >log 2>err; }
run ckpt-reshard local.safetensors --world 1 -o broken
file=$(ls broken/model/* | head -n 1)
printf '\377' | dd of="$file" bs=1 seek=$(($(stat -c %s "$file") - 100)) conv=notrunc status=none
echo 'My notes' >README.md
CKPT_FAULT=kill:30 run ckpt-merge broken --dcp -o "$at/mine" 2>noise # its notes are there: what is at the name is no reason to refuse
aws s3 cp README.md "$at/mine/README.md"
run ckpt-merge broken --dcp -o "$at/mine"
[ $? = 1 ] && grep -q "file 'broken/" err
ok $? "a damaged checkpoint is not merged: $(tail -n 1 err)"
aws s3 cp "$at/mine/README.md" kept && cmp -s kept README.md
ok $? "and a README.md that was there stays"
echo "1..$n"
exit $bad
