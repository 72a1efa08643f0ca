#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Draws the loss curve of metrics files (log.metrics), one after the other, with a level to compare
# with: plot.sh OUT.png LEVEL METRICS.jsonl...
set -u -o pipefail
[ $# -ge 3 ] || { echo "usage: plot.sh OUT.png LEVEL METRICS.jsonl..." >&2; exit 2; }
out=$1 level=$2
shift 2
command -v gnuplot >/dev/null || { echo "plot.sh: no gnuplot here (scripts/deps.sh demo)" >&2; exit 1; }
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

# A resumed run repeats the steps since its checkpoint: an empty line starts another piece of curve.
pick() { # key, files
    local key=$1
    shift
    awk -v key="$key" '
        function value(name) {
            if (!match($0, "\"" name "\": *[-+.0-9eE]+"))
                return ""
            return substr($0, RSTART + length(name) + 3, RLENGTH - length(name) - 3)
        }
        value(key) != "" {
            step = value("step") + 0
            if (step <= last) print ""
            print step, value(key) + 0
            last = step
        }' "$@"
}
pick loss "$@" >"$work/loss"
pick eval_loss "$@" >"$work/eval"
[ -s "$work/loss" ] || { echo "plot.sh: no loss in $*" >&2; exit 1; }
plots="'$work/loss' with lines lw 2 lc rgb '#2060c0' title 'training'"
[ ! -s "$work/eval" ] || plots+=", '$work/eval' with points pt 7 ps 1.4 lc rgb '#d03020' title 'held out'"
plots+=", $level with lines dt 2 lc rgb '#606060' title 'unigram model'"
marks=$(awk '/^$/ { getline; print "set arrow from " $1 ", graph 0 to " $1 ", graph 1 nohead dt 3 lc rgb \"#909090\"; " \
    "set label \" resumed\" at " $1 ", graph 0.95" }' "$work/loss")

gnuplot <<END
set terminal pngcairo size 960,600 font "sans,12"
set output "$out"
set xlabel "optimizer step"
set ylabel "loss (nats per token)"
set grid lc rgb '#e0e0e0'
$marks
plot $plots
END
