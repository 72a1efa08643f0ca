#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Ids and texts against those of tokenizers, tiktoken, sentencepiece and mistral-common, with real
# vocabularies (scripts/fetch_vocab.py). Needs a Python with them: TORCH_PYTHON. Prints TAP.
# run: timeout=900
. "$TOP/tests/lib/python.sh"
need_python 'tokenizers, tiktoken, sentencepiece, mistral_common'
need_vocab
"$PYTHON" -W ignore "$TOP/tests/interop/tokens.py" "$BIN/tests/interop/test_tokens" "$vocab" "$TEST_TMP"
