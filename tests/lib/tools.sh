# SPDX-License-Identifier: Apache-2.0
# tools.sh: programs as a user calls them; `.` it in the scratch folder.
#
#   run STATUS PROG ARGS   runs $BIN/PROG, output in `out` and `err`: did it exit so?
#   says TEXT              has it written this line, or a part of one?
run() {
    local want=$1
    shift
    "$BIN/$1" "${@:2}" >out 2>err
    [ $? = "$want" ]
}
says() { grep -q -F -- "$1" out err; }
