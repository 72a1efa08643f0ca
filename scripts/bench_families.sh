#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A training step of each model family on one CPU thread, as rows of a table in Markdown: CPU seconds, and the shares of
# products of weights, of attention (mostly its own products) and of the rest. Two layers of width 768, 4 x 256 tokens.
# Run it as scripts/bench.sh families [FAMILY...].
set -u
TOP=$(cd "$(dirname "$0")/.." && pwd)
BIN=${BIN:-$TOP/build/bin}
unset OPENBLAS_CORETYPE
export OMP_NUM_THREADS=1
work=$(mktemp -d "${TMPDIR:-/tmp}/fsdp-bench.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT

. "$TOP/scripts/family_configs.sh"

# shellcheck disable=SC2086 # words
[ $# -gt 0 ] || set -- $FAMILIES
echo '| family | CPU seconds | products of weights, % | attention, % | the rest, % | largest of the rest |'
echo '| --- | --- | --- | --- | --- | --- |'
for family; do
    family_config "$family" 768 2048 12 64 8192 1024 128 >"$work/config.json"
    "$BIN/tests/models/bench_llama" config="$work/config.json" batch=4 seq=256 steps="${STEPS:-3}" threads=1 \
        >"$work/log" 2>&1 || { echo "bench: $family: $(tail -n 1 "$work/log")" >&2 && exit 1; }
    awk -v family="$family" '
        /^step  / { best = $2 }
        /^outside matrix products/ { outside = $(NF - 1) }
        /^and outside attention/ { rest = $(NF - 1) }
        / s .* %$/ && !/^(step|outside|and|linear|grouped|attention)/ && $(NF - 1) > most {
            most = $(NF - 1)
            name = $0
            sub(/  .*/, "", name)
            sub(/ +[0-9.]+ s.*/, "", name)
        }
        END { printf "| `%s` | %.3f | %.1f | %.1f | %.1f | %s, %.1f |\n", family, best, 100 - outside, outside - rest,
              rest, name, most }' "$work/log"
    [ -z "${SHOW:-}" ] || cat "$work/log"
done
