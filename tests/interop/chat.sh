#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Chats rendered with real templates (llama-cpp-python's source package, TRL's wheel) are what transformers
# renders: the text, the assistant's spans where a template marks them, and the fact of an error.
# run: timeout=600
if ! "${TORCH_PYTHON:-python3}" -c 'import transformers, jinja2' 2>/dev/null; then
    echo "1..0 # SKIP no Python with transformers and jinja2 (set TORCH_PYTHON)"
    exit 0
fi
vocab=$TOP/build/vocab
if ! [ -e "$vocab" ] && ! python3 "$TOP/scripts/fetch_vocab.py" "$vocab" >log 2>&1; then
    sed 's/^/# /' log
    echo "not ok 1 - the packages with the templates"
    echo "1..1"
    exit 1
fi
HF_HUB_OFFLINE=1 PYTHONDONTWRITEBYTECODE=1 "$TORCH_PYTHON" -W ignore "$TOP/tests/interop/chat.py" \
    "$BIN/tests/interop/test_chat_render" "$vocab"
