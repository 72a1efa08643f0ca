#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Random tokenizer.json files on random texts against the package tokenizers; SEED=N COUNT=N draw others. Needs a
# Python with it: TORCH_PYTHON. Prints TAP.
# run: timeout=300
. "$TOP/tests/lib/python.sh"
need_python 'tokenizers'
# A panic of the original prints its stack.
"$PYTHON" -W ignore "$TOP/tests/interop/tokens_random.py" "$BIN/tests/interop/test_tokens" "$TEST_TMP" \
    "${SEED:-1}" "${COUNT:-600}" 2>"$TEST_TMP/panics.log"
