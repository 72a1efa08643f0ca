#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The table of docs/metrics.md, from what fsdp-launch --print-metrics prints; tests/house/metrics.sh compares them.
#
#   scripts/metrics_table.sh [FSDP-LAUNCH]           prints it
#   scripts/metrics_table.sh --write [FSDP-LAUNCH]   writes it into the page
set -u
top=$(cd "$(dirname "$0")/.." && pwd)
write=
[ "${1:-}" != --write ] || { write=1 && shift; }
launch=${1:-$top/build/bin/fsdp-launch}

table() {
    echo '| metrics.jsonl | unit | TensorBoard | Prometheus | what it is |'
    echo '| --- | --- | --- | --- | --- |'
    # Names stand in columns, and what they mean in indented lines below them.
    "$launch" --print-metrics | awk '
        function column(from, len,   text) {
            text = substr($0, from, len); sub(/ +$/, "", text)
            return text == "-" ? "" : text
        }
        function code(text) { return text == "" ? "" : "`" text "`" }
        function put() { if (row != "") print row " " help " |"; row = help = "" }
        NR == 1 { next }
        /^[^ ]/ { put(); row = "| " code(column(1, 18)) " | " column(20, 9) " | " code(column(30, 19)) " | " code(column(50, 60)) " |" }
        /^ / { sub(/^ +/, ""); help = help (help == "" ? "" : " ") $0 }
        END { put() }' | sed 's/|  |/| |/g; s/|  |/| |/g'
}

if [ -z "$write" ]; then
    table
    exit
fi
table >"$top/docs/metrics.md.new" || exit 1
awk -v new="$top/docs/metrics.md.new" '
    /^\| metrics.jsonl \| unit/ { while ((getline line < new) > 0) print line; on = 1 }
    on && /^\|/ { next }
    { on = 0; print }' "$top/docs/metrics.md" >"$top/docs/metrics.md.all" &&
    mv "$top/docs/metrics.md.all" "$top/docs/metrics.md"
rm -f "$top/docs/metrics.md.new"
