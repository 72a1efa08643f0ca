#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# fsdp-generate --chat against transformers: for folders with a trained tokenizer and a template,
# apply_chat_template and greedy generate give the same tokens and the same text, over several turns.
# run: timeout=400
. "$TOP/tests/lib/python.sh"
need_python 'torch, transformers, safetensors, tokenizers, jinja2'
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 HF_HUB_DISABLE_PROGRESS_BARS=1
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
gen() { "$BIN/fsdp-generate" --device cpu --max-tokens 24 "$@" 2>>err; }
py() { "$PYTHON" -W ignore "$TOP/tests/interop/generate_chat.py" "$@" >log 2>&1; }

py make
ok $? "folders of transformers, and what it answers"
first=$(head -n 1 user)
for kind in chatml headers inst gpt2; do
    : >err
    gen --model $kind --prompts $kind.ids >$kind.ids.out &&
        gen --model $kind --prompts $kind.chats --batch 3 >$kind.chats.out &&
        gen --model $kind --chat <user >$kind.talk &&
        gen --model $kind --chat --system "Answer as a bandun: bur, ber, bor." <user >$kind.talk.system &&
        gen --model $kind --chat --prompt "$first" >$kind.one &&
        gen --model $kind --chat --prompt "$first" --system "Answer as a bandun: bur, ber, bor." >$kind.one.system &&
        gen --model $kind --chat --prompt "$first" --template-var enable_thinking=false >$kind.one.variable
    ok $? "$kind: answers"
    py check $kind
    ok $? "$kind: the tokens and the text of transformers: $(tail -n 1 log)"
done

echo "1..$n"
exit $bad
