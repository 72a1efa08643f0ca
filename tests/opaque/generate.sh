#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# fsdp-generate on a device whose memory the host cannot touch (opaque.c) gives the CPU's bits: with work
# done at once, and with work put off until somebody waits for it. And what it says of the device.
. "$TOP/tests/lib/tap.sh"
export FSDP_CUDA_LIBRARY=$BIN/tests/libfsdp-opaque.so
data=$TOP/tests/data

same() { # arguments: at once and put off as on the CPU
    local seed
    "$BIN/fsdp-generate" --device cpu "$@" >cpu 2>err && [ -s cpu ] || return 1
    for seed in '' 1 2; do
        env ${seed:+OPAQUE_SEED=$seed} "$BIN/fsdp-generate" --device cuda "$@" >cuda 2>err &&
            cmp cpu cuda >log 2>&1 && ! grep -v "^fsdp-generate: prompt: .* tokens/s$" err || return 1
    done
}
for model in llama-tiny gpt2-tiny; do
    same --model "$data/$model" --tokens 5,6,7 --seed 7 --max-tokens 40 --ignore-eos --top-p 0.9
    ok $? "$model: the same text for the same seed"
    same --model "$data/$model" --tokens "$(seq -s , 1 60)" --logits
    ok $? "$model: the same logits"
done
printf '{"tokens": [%s], "seed": %d}\n' 1,2,3 4 5 6 7,8,9,10,11 12 13,14 15 >prompts.jsonl
for model in llama-tiny gpt2-tiny; do
    same --model "$data/$model" --prompts prompts.jsonl --batch 3 --max-tokens 30 --ignore-eos
    ok $? "$model: the same of several prompts at once"
    same --model "$data/$model" --prompts prompts.jsonl --batch 3 --max-tokens 30 --ignore-eos --kv-dtype bfloat16
    ok $? "$model: and with keys and values in bfloat16"
done
same --model "$data/llama-tiny" --prompt "To be or not to be" --greedy --max-tokens 30
ok $? "text of a prompt"

"$BIN/fsdp-generate" --model "$data/llama-tiny" --prompt x --max-tokens 9 -v >cuda 2>err &&
    [ "$(grep -c "^fsdp-generate: device auto: the first GPU is used (--device cpu for the CPU)$" err)" = 1 ]
ok $? "auto says once that it takes a GPU"

refused() { # pattern, setting of the environment
    ! env "$2" "$BIN/fsdp-generate" --model "$data/llama-tiny" --prompt x --device cuda >out 2>err &&
        [ ! -s out ] && [ "$(wc -l <err)" = 1 ] && grep -q "fsdp-generate: device cuda: .*$1" err
}
refused 'nowhere.so cannot be opened' FSDP_CUDA_LIBRARY=nowhere.so
ok $? "cuda refuses: $(cat err)"
refused 'libfsdp.so is not of this build' "FSDP_CUDA_LIBRARY=$BIN/../lib/libfsdp.so"
ok $? "cuda refuses another library"
if [ ! -f "$BIN/../lib/libfsdp-cuda.so" ]; then
    echo "ok $((n += 1)) # SKIP built without CUDA"
elif ldconfig -p 2>/dev/null | grep -q 'libcuda\.so\.1'; then
    echo "ok $((n += 1)) # SKIP this machine has a driver"
else
    refused "this machine has no NVIDIA driver" FSDP_CUDA_LIBRARY= &&
        FSDP_CUDA_LIBRARY= "$BIN/fsdp-generate" --model "$data/llama-tiny" --prompt x --max-tokens 9 -v >out 2>err &&
        [ "$(grep -c "device auto" err)" = 1 ] && grep -q 'device auto: the CPU is used (.*no NVIDIA driver' err
    ok $? "auto says once why it takes the CPU"
fi
echo "1..$n"
exit $bad
