#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Matrices that bitsandbytes has quantized (tests/data/bnb-nf4) are decoded by ckpt-merge, to the bit; other quantization
# is refused.
. "$TOP/tests/lib/tap.sh"
sample=$TOP/tests/data/bnb-nf4/double-48x130-bf16
holds() { grep -q -F -- "$2" "$1"; } # file, text

"$BIN/ckpt-merge" -q "$sample/quantized.safetensors" -o full.safetensors >log 2>&1 &&
    "$BIN/ckpt-diff" full.safetensors "$sample/expected.safetensors" >log 2>&1
ok $? "decoded: bitsandbytes' own values"
"$BIN/ckpt-info" full.safetensors >log 2>&1
ok "$(holds log '1 tensor' && holds log 6240; echo $?)" "and nothing else is left"
mkdir folder
cp "$sample/quantized.safetensors" folder/model.safetensors
echo '{"model_type": "llama", "torch_dtype": "float32", "quantization_config": {"quant_method": "bitsandbytes"}}' >folder/config.json
"$BIN/ckpt-merge" -q folder -o whole/ >log 2>&1
ok "$([ $? = 0 ] && holds whole/config.json '"bfloat16"' && ! holds whole/config.json quantization_config; echo $?)" \
    "config.json says so no more"
"$BIN/ckpt-merge" -q --dtype float32 --mem 1MiB folder -o wide.safetensors >log 2>&1 &&
    "$BIN/ckpt-merge" -q --dtype bfloat16 wide.safetensors -o narrow.safetensors >log 2>&1 &&
    "$BIN/ckpt-diff" narrow.safetensors "$sample/expected.safetensors" >log 2>&1
ok $? "cast on the way"
"$BIN/ckpt-reshard" -q folder -o ranks --world 2 >log 2>&1
ok "$([ $? = 0 ] && "$BIN/ckpt-info" ranks >log 2>&1 && holds log 'weight.nested_absmax'; echo $?)" "ckpt-reshard keeps them as they are"

refused() { # what, sed script
    LC_ALL=C sed "$2" "$sample/quantized.safetensors" >other.safetensors
    "$BIN/ckpt-merge" -q other.safetensors -o never.safetensors >log 2>&1
    ok "$([ $? != 0 ] && holds log "quantized in a way that is not supported ($1)" && [ ! -e never.safetensors ]; echo $?)" "refused: another $1"
}
refused quant_type 's/"quant_type": "nf4"/"quant_type": "fp4"/'
refused blocksize 's/"blocksize": 64/"blocksize": 32/'
refused nested_blocksize 's/"nested_blocksize": 256/"nested_blocksize": 128/'
refused shape 's/"shape": \[48/"shape": [-8/'
refused sizes 's/"shape": \[48/"shape": [49/'
refused dtype 's/"dtype": "bfloat16"/"dtype": "int64567"/'
refused 'no JSON' 's/{"quant_type"/["quant_type"/'
"$BIN/ckpt-merge" -q "$TOP/tests/data/bnb-nf4/double-48x130-bf16/original.safetensors" -o plain.safetensors >log 2>&1 &&
    "$BIN/ckpt-diff" plain.safetensors "$sample/original.safetensors" >log 2>&1
ok $? "what is not quantized is as before"
echo "1..$n"
exit $bad
