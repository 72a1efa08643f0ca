#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Ids and texts against those of tokenizers, tiktoken, sentencepiece and mistral-common, with real
# vocabularies (scripts/fetch_vocab.py). Needs a Python with them: TORCH_PYTHON. Prints TAP.
# run: timeout=900
PYTHON=${TORCH_PYTHON:-python3}
if ! "$PYTHON" -c 'import tokenizers, tiktoken, sentencepiece, mistral_common' 2>/dev/null; then
    echo "ok 1 # SKIP '$PYTHON' has no tokenizers, tiktoken, sentencepiece or mistral-common (set TORCH_PYTHON)"
    echo "1..1"
    exit 0
fi
vocab=${VOCAB:-$TOP/build/vocab}
if ! "$PYTHON" "$TOP/scripts/fetch_vocab.py" "$vocab" 2>"$TEST_TMP/fetch.log"; then
    sed 's/^/# /' "$TEST_TMP/fetch.log"
    echo "not ok 1 - cannot fetch the vocabularies into $vocab"
    echo "1..1"
    exit 1
fi
"$PYTHON" -W ignore "$TOP/tests/interop/tokens.py" "$BIN/tests/interop/test_tokens" "$vocab" "$TEST_TMP"
