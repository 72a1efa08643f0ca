#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Adapters on experts in NF4 (lora.base: nf4-experts) against bitsandbytes' values of the same tensors, and PEFT: gradients,
# ten steps of AdamW and the adapter after them, on one rank and on two.
# run: timeout=900
. "$TOP/tests/lib/python.sh"
need_python 'torch, transformers, peft, bitsandbytes'
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/adapters.sh"
checks=qlora_experts
families='mixtral granitemoe gpt_oss'

python qlora_experts make $families >log 2>&1
ok $? "models, what 4 bits leave of them, and PEFT's adapters"
run experts one 1 train.micro_batch_size=4 lora.base=nf4-experts
run experts two 2 train.micro_batch_size=2 lora.base=nf4-experts fsdp.activation_checkpointing=full
answers $checks
echo "1..$n"
exit $bad
