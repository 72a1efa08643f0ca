#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Chats rendered with real templates (llama-cpp-python's source package, TRL's wheel) are what transformers
# renders: the text, the assistant's spans where a template marks them, and the fact of an error.
# run: timeout=600
. "$TOP/tests/lib/python.sh"
need_python 'transformers, jinja2'
need_vocab
HF_HUB_OFFLINE=1 PYTHONDONTWRITEBYTECODE=1 "$PYTHON" -W ignore "$TOP/tests/interop/chat.py" \
    "$BIN/tests/interop/test_chat_render" "$vocab"
