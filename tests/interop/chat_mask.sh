#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Chats as training rows: ids and learned tokens are those of transformers where a template marks what
# the assistant generates, and the same template without its marks gives the same by the search for turns.
# run: timeout=600
. "$TOP/tests/lib/python.sh"
need_python 'transformers, jinja2, tokenizers'
need_vocab
HF_HUB_OFFLINE=1 PYTHONDONTWRITEBYTECODE=1 "$PYTHON" -W ignore "$TOP/tests/interop/chat_mask.py" \
    "$BIN/tests/interop/test_line" "$vocab" "$TEST_TMP"
