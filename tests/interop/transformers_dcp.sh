#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Weights that go from Hugging Face to torch's distributed checkpoints and back, or that torch saved with
# an optimizer and other tensors around them, load in transformers: no name missing, none unexpected.
# run: timeout=300
. "$TOP/tests/lib/python.sh"
need_python 'torch, transformers, safetensors'
cd "$TEST_TMP" || exit 1
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 PATH=$BIN:$PATH
. "$TOP/tests/lib/tap.sh"
model() { "$TORCH_PYTHON" -W ignore "$TOP/tests/interop/transformers_dcp.py" "$@" >log 2>err && ! [ -s log ]; }
tool() { "$@" >log 2>err; }

mkdir saved
model make saved
ok $? "transformers and torch save a model"
tool ckpt-reshard -q saved/hf -o dcp --format dcp --world 2 && tool ckpt-merge -q dcp -o back
ok $? "to a torch folder and back"
tool ckpt-merge -q saved/app -o app && tool ckpt-merge -q saved/run/pytorch_model_fsdp_0 -o run
ok $? "torch's own folders, with config.json next to .metadata and one folder above"
model check saved/hf back app run
ok $? "transformers loads them all: the same names, logits and generation_config.json"
tool ckpt-merge -q saved/hf -o fp8 --dtype float8_e4m3fn && tool "$TORCH_PYTHON" -W ignore -c "
import torch, transformers
config = transformers.AutoConfig.from_pretrained('fp8')
assert config.dtype == torch.float8_e4m3fn, config.dtype"
ok $? "it reads float8_e4m3fn out of config.json"
echo "1..$n"
exit $bad
