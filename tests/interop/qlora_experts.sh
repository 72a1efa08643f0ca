#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Adapters on experts in NF4 (lora.base: nf4-experts) against bitsandbytes' values of the same tensors, and PEFT: gradients,
# ten steps of AdamW and the adapter after them, on one rank and on two.
# run: timeout=900
if ! "${TORCH_PYTHON:-python3}" -c 'import torch, transformers, peft, bitsandbytes' 2>/dev/null; then
    echo "1..0 # SKIP no Python with torch, transformers, PEFT and bitsandbytes (set TORCH_PYTHON)"
    exit 0
fi
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/adapters.sh"
checks=qlora_experts
families='mixtral granitemoe gpt_oss'

python qlora_experts make $families >log 2>&1
ok $? "models, what 4 bits leave of them, and PEFT's adapters"
run experts one 1 train.micro_batch_size=4 lora.base=nf4-experts
run experts two 2 train.micro_batch_size=2 lora.base=nf4-experts fsdp.activation_checkpointing=full
echo "1..$n"
exit $bad
