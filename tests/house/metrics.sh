#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# docs/metrics.md has the table of --print-metrics; names are such as TensorBoard and Prometheus take.
cd "$TOP" || exit 1
n=0 bad=0
check() { # text, offenders
    n=$((n + 1))
    if [ -z "$2" ]; then
        echo "ok $n - $1"
    else
        echo "not ok $n - $1"
        sed 's/^/# /' <<<"$2"
        bad=1
    fi
}

table=$(scripts/metrics_table.sh "$BIN/fsdp-launch")
check "the table has rows" "$([ "$(wc -l <<<"$table")" -gt 30 ] || echo "$table")"
check "each says what it is" "$(awk -F ' *[|] *' 'NR > 2 && (NF != 7 || $6 == "")' <<<"$table")"
check "docs/metrics.md has it (scripts/metrics_table.sh --write)" \
    "$(diff <(awk '/^[|] metrics.jsonl [|]/ { on = 1 } !/^[|]/ { on = 0 } on' docs/metrics.md) <(echo "$table"))"
column() { awk -F ' *[|] *' -v c="$1" 'NR > 2 && $c != "" { gsub("`", "", $c); print $c }' <<<"$table"; }
check "no name comes twice" "$(for c in 2 4 5; do column $c | sort | uniq -d; done)"
check "keys are plain" "$(column 2 | grep -v -x -E '[a-z_]+')"
check "tags have a group" "$(column 4 | grep -v -x -E '[a-z]+/[a-z_]+')"
check "Prometheus takes the names" "$(column 5 | grep -v -x -E 'fsdp_[a-z_]+')"
check "--print-metrics fits 80 columns" "$("$BIN/fsdp-launch" --print-metrics | awk 'length > 80')"
check "and says when it cannot be written" "$(! [ -w /dev/full ] ||
    ! "$BIN/fsdp-launch" --print-metrics >/dev/full 2>"$TEST_TMP/err" && grep -q "No space left" "$TEST_TMP/err" || echo "$?")"
echo "1..$n"
exit $bad
