#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Chats as training rows: ids and learned tokens are those of transformers where a template marks what
# the assistant generates, and the same template without its marks gives the same by the search for turns.
# run: timeout=600
if ! "${TORCH_PYTHON:-python3}" -c 'import transformers, jinja2, tokenizers' 2>/dev/null; then
    echo "1..0 # SKIP no Python with transformers and tokenizers (set TORCH_PYTHON)"
    exit 0
fi
vocab=$TOP/build/vocab
if ! [ -e "$vocab" ] && ! python3 "$TOP/scripts/fetch_vocab.py" "$vocab" >log 2>&1; then
    sed 's/^/# /' log
    echo "not ok 1 - the packages with the templates"
    echo "1..1"
    exit 1
fi
HF_HUB_OFFLINE=1 PYTHONDONTWRITEBYTECODE=1 "$TORCH_PYTHON" -W ignore "$TOP/tests/interop/chat_mask.py" \
    "$BIN/tests/interop/test_line" "$vocab" "$TEST_TMP"
