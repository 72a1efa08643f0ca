#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# fsdp-tokenize against tokenizers: the ids of files of prose, code and JSON Lines, and their text. Needs a Python with
# tokenizers (TORCH_PYTHON) and real vocabularies (scripts/fetch_vocab.py). Prints TAP.
# run: timeout=600
. "$TOP/tests/lib/python.sh"
need_python 'tokenizers'
need_vocab
"$PYTHON" -W ignore "$TOP/tests/interop/token_files.py" "$BIN/fsdp-tokenize" "$vocab" "$TEST_TMP"
