#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# fsdp-tokenize against tokenizers: the ids of files of prose, code and JSON Lines, and their text. Needs a Python with
# tokenizers (TORCH_PYTHON) and real vocabularies (scripts/fetch_vocab.py). Prints TAP.
# run: timeout=600
PYTHON=${TORCH_PYTHON:-python3}
if ! "$PYTHON" -c 'import tokenizers' 2>/dev/null; then
    echo "ok 1 # SKIP '$PYTHON' has no tokenizers (set TORCH_PYTHON)"
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
"$PYTHON" -W ignore "$TOP/tests/interop/tokenize.py" "$BIN/fsdp-tokenize" "$vocab" "$TEST_TMP"
