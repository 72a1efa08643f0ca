#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# docs/tutorials/from-pytorch.md: every command, as it stands there, and what it prints. Then what the page
# says of the losses.
# run: long
# run: timeout=900
. "$TOP/tests/lib/python.sh"
need_python 'torch, transformers, numpy'
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/tutorial.sh"
export HF_HUB_OFFLINE=1
tutorial_tree
cat >setup.sh <<COMMANDS
python() { "$PYTHON" -W ignore "\$@"; }
torchrun() { "$PYTHON" -W ignore -m torch.distributed.run --master-port 0 --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:0 "\$@"; }
COMMANDS
tutorial_run "$TOP/docs/tutorials/from-pytorch.md"
# "step 25  loss 1.2345" of one, "step 25/40  loss 1.2345" of the other.
losses() { sed -n -E 's|^step ([0-9]+)(/40)? +loss ([0-9.]+).*|\1 \3|p' "$1" | grep -E '^(25|30|35|40) '; }
losses tree/build/from-pytorch/torch-losses >theirs
losses tree/build/from-pytorch/our-losses >ours
paste theirs ours >log
ok "$([ "$(wc -l <ours)" = 4 ] && awk '{ d = $2 - $4; if ($1 != $3 || d > 1.01e-4 || d < -1.01e-4) exit 1 }' log; echo $?)" \
    "the losses agree to one in the last digit"
ok "$([ "$n" -ge 8 ]; echo $?)" "the page has its commands"
echo "1..$n"
exit $bad
