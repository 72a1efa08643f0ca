#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Vocabularies that are learned here against those of tokenizers' BpeTrainer, and the written folder in
# transformers. Needs a Python with both: TORCH_PYTHON. Prints TAP.
# run: timeout=600
. "$TOP/tests/lib/python.sh"
need_python 'tokenizers, transformers'
export TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1
"$PYTHON" -W ignore "$TOP/tests/interop/train_tokenizer.py" "$BIN/tests/interop/test_train_tokenizer" \
    "$BIN/tests/interop/test_tokens" "$TEST_TMP"
