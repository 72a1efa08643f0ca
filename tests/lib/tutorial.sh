# SPDX-License-Identifier: Apache-2.0
# tutorial.sh: runs the commands of a page of docs/tutorials as a reader types them; `.` it after tap.sh.
#
# The blocks ```sh of the page run in order in one shell. A block ```text after one holds lines that its
# output must contain, in this order; "..." skips, and numbers may be others: 12.5 stands for any number.

# A copy of the source tree without what is built, in ./tree: the page's commands may write there.
tutorial_tree() {
    mkdir -p tree/build
    cp -r "$TOP"/{Makefile,config.mk,README.md,docs,examples,scripts,slurm,models} tree/
    ln -s "$BIN" tree/build/bin
}

# The blocks of a page, as files blocks/NN.sh with the heading that they stand under, and blocks/NN.text.
tutorial_blocks() { # page
    rm -rf blocks
    mkdir blocks
    awk '
        /^```sh$/   { file = sprintf("blocks/%02d.sh", ++nblocks); print "# " heading >file; next }
        /^```text$/ { file = sprintf("blocks/%02d.text", nblocks); next }
        /^```/      { if (file) close(file); file = ""; next }
        file        { print >file; next }
        /^#/        { heading = $0; sub(/^#+ */, "", heading) }' "$1"
}

# What is compared of a line: numbers are one word, and so is any white space.
tutorial_shape() {
    sed -E 's/\x1b\[[0-9;]*[mK]//g; s/[0-9]+([.,][0-9]+)*(e[-+]?[0-9]+)?/#/g; s/[[:space:]]+/ /g; s/^ | $//g'
}

# Do the lines of a block stand in the output, in this order? A line may be the beginning of one.
tutorial_shows() { # output, expected
    awk 'NR == FNR { out[++nout] = $0; next }
        $0 == "..." || $0 == "" { next }
        { while (at < nout && index(out[++at], $0) != 1) missed++
          if (index(out[at], $0) != 1) { print "not in the output: " $0; bad = 1; exit } }
        END { exit bad }' <(tutorial_shape <"$1") <(tutorial_shape <"$2")
}

# Runs a page in ./tree, a result for each block. A function with a command name's in setup.sh, if it is
# there, stands for that command.
tutorial_run() { # page
    local block status heading scratch=$PWD
    tutorial_blocks "$1"
    : >state
    touch setup.sh
    for block in blocks/*.sh; do
        # One shell for all: what a block exports, and its folder, is kept for the next one.
        (
            cd tree || exit 1
            . "$scratch/setup.sh"
            . "$scratch/state"
            set -e
            . "$scratch/$block"
            { export -p; echo "cd '$PWD'"; } >"$scratch/state"
        ) >log 2>&1 </dev/null
        status=$?
        heading=$(head -n 1 "$block")
        ok $status "${heading#\# }: $(sed -n '2{s/ *<<.*//;p;}' "$block")"
        [ $status = 0 ] || return
        [ ! -e "${block%.sh}.text" ] || {
            tutorial_shows log "${block%.sh}.text" >why
            status=$?
            cat why >>log
            ok $status "${heading#\# }: it prints what the page shows"
        }
    done
}
