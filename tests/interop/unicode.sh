#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# models/text/unicode and models/text/regex against PyPI's tokenizers and tiktoken: every code point in
# every class and form, real patterns on random text. Needs TORCH_PYTHON with both. Prints TAP.
# run: timeout=300
PYTHON=${TORCH_PYTHON:-python3}
if ! "$PYTHON" -c 'import tokenizers, tiktoken' 2>/dev/null; then
    echo "ok 1 # SKIP '$PYTHON' has no tokenizers and tiktoken (set TORCH_PYTHON)"
    echo "1..1"
    exit 0
fi
exec "$PYTHON" -W ignore "$TOP/tests/interop/unicode.py" "$BIN/tests/text"
