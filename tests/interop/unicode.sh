#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# models/text/unicode and models/text/regex against PyPI's tokenizers and tiktoken: every code point in
# every class and form, real patterns on random text. Needs TORCH_PYTHON with both. Prints TAP.
# run: long
# run: timeout=900
. "$TOP/tests/lib/python.sh"
need_python 'tokenizers, tiktoken'
exec "$PYTHON" -W ignore "$TOP/tests/interop/unicode.py" "$BIN/tests/text"
