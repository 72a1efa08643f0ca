#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# As dcp_train.sh, of SGD: it has no counters, and without momentum no state at all, so that the step comes from a value
# that the script saved, or is not known.
# run: timeout=1200
. "$TOP/tests/lib/torch_train.sh"

names() { # of the optimizer's entries
    "$TORCH_PYTHON" -W ignore - "$1" <<'END'
import sys
from torch.distributed.checkpoint import FileSystemReader
paths = FileSystemReader(sys.argv[1]).read_metadata().planner_data
print("\n".join(sorted(str(p) for p in paths.values() if p[0] == "optim")))
END
}
for momentum in 0.9 0.0; do
    sgd="optim.name=sgd optim.momentum=$momentum optim.lr=0.05 optim.weight_decay=0.01"
    torch model tokens 2 0 4 sgd.json --sgd $momentum --save torch-$momentum --count &&
        torch model tokens 2 4 8 want.json --sgd $momentum --load torch-$momentum
    ok $? "SGD, momentum $momentum: torch saves and continues"
    rm -f e.jsonl
    launch -n 4 $sgd checkpoint.path=e-$momentum log.metrics=e.jsonl
    ok $? "fsdp-launch trains"
    close e.jsonl 5 want.json 0
    ok $? "with torch's losses"
    "$BIN/ckpt-reshard" e-$momentum/step-00000004 -o sgd-$momentum --format dcp --world 3 >log 2>err &&
        names torch-$momentum >want && names sgd-$momentum >got && diff want got >err
    ok $? "its checkpoint as DCP has the optimizer's names that torch's has, and no others"
    torch model tokens 2 4 8 back.json --sgd $momentum --load sgd-$momentum
    ok $? "torch loads it and continues"
    close e.jsonl 5 back.json 0
    ok $? "with the same losses"
    "$BIN/ckpt-reshard" sgd-$momentum -o again-$momentum --world 2 >log 2>err &&
        "$BIN/ckpt-info" --json again-$momentum >log && grep -q '^ "step": 4,$' log
    ok $? "and back from there, the step is known"
    rm -f f.jsonl g.jsonl
    launch -n 4 $sgd checkpoint.resume=torch-$momentum checkpoint.path=f-$momentum log.metrics=f.jsonl
    ok $? "fsdp-launch resumes from torch's fourth step, which a value tells"
    close f.jsonl 5 want.json 0
    ok $? "with torch's losses"

    # Without such a value nobody knows the step: the run says so, or counts one.
    torch model tokens 2 0 4 sgd.json --sgd $momentum --save uncounted-$momentum &&
        torch model tokens 2 0 4 anew.json --sgd $momentum --load uncounted-$momentum
    ok $? "torch saves as it does by itself, and continues with the first rows"
    launch -n 4 $sgd checkpoint.resume=uncounted-$momentum checkpoint.path=g-$momentum
    ok "$([ $? != 0 ] && grep -q "torch's SGD does not count: save it as 'step'" err; echo $?)" \
        "fsdp-launch asks for the step: $(tail -n 1 err)"
    launch -n 4 $sgd checkpoint.resume=uncounted-$momentum checkpoint.path=g-$momentum log.metrics=g.jsonl \
        checkpoint.data_position=restart train.steps=5
    ok $? "and continues without it where the data starts anew"
    close g.jsonl 2 anew.json 0
    ok $? "with torch's losses"
done
for from in torch-0.9 e-0.9/step-00000004; do
    "$BIN/ckpt-info" --json $from >log 2>err && grep -q 'lr":0.05,' log && grep -q 'weight_decay":0.01,' log
    ok $? "ckpt-info --json of $from: floats as short as they read back equal"
done
echo "1..$n"
exit $bad
