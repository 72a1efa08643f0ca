#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A run goes from PyTorch's FSDP2 to fsdp-launch and back in the middle, weights and AdamW's moments
# and step: the next losses are those of the run that was not moved.
# run: timeout=1200
. "$TOP/tests/lib/torch_train.sh"

torch model tokens 2 0 4 first.json --save torch-ck && torch model tokens 2 4 8 want.json --load torch-ck
ok $? "torch trains four steps on 2 ranks, saves, and continues"

launch -n 4 checkpoint.resume=torch-ck checkpoint.path=a log.metrics=a.jsonl
ok $? "fsdp-launch resumes from there on 4 ranks"
close a.jsonl 5 want.json 0
ok $? "its losses are torch's"

"$BIN/ckpt-reshard" torch-ck -o native --world 2 >log 2>err &&
    launch -n 2 checkpoint.resume=native checkpoint.path=b log.metrics=b.jsonl
ok $? "also through ckpt-reshard"
close b.jsonl 5 want.json 0
ok $? "with the same losses"

launch -n 4 checkpoint.path=c log.metrics=c.jsonl
ok $? "fsdp-launch trains eight steps"
close c.jsonl 5 want.json 0
ok $? "its losses are torch's all along"
"$BIN/ckpt-reshard" c/step-00000004 -o back --format dcp --world 3 >log 2>err &&
    torch model tokens 2 4 8 back.json --load back
ok $? "torch loads its fourth step, resharded to DCP, and continues"
close c.jsonl 5 back.json 0
ok $? "with the same losses"

launch -n 4 optim.moment_dtype=bfloat16 checkpoint.path=d log.metrics=d.jsonl &&
    "$BIN/ckpt-reshard" d/step-00000004 -o narrow --format dcp --world 2 >log 2>err &&
    torch model tokens 2 4 8 narrow.json --load narrow
ok $? "torch loads moments that were kept in bfloat16, and continues"
close d.jsonl 5 narrow.json 0 0.01
ok $? "with losses within 0.01"

echo "1..$n"
exit $bad
