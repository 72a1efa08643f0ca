# SPDX-License-Identifier: Apache-2.0
# tap.sh: the Test Anything Protocol for shell tests; `.` it in the scratch folder. A test ends with
# `echo "1..$n"; exit $bad`.
n=0 bad=0
# Counts the TAP lines of another program, in a file, with the test's own.
ok_lines() { # file
    local line
    while IFS= read -r line; do
        case $line in
        'ok - '*) ok 0 "${line#ok - }" ;;
        'not ok - '*) ok 1 "${line#not ok - }" ;;
        *) echo "$line" ;;
        esac
    done <"$1"
}
ok() { # status, text; a failure shows the end of the files log and err
    n=$((n + 1))
    if [ "$1" = 0 ]; then
        echo "ok $n - $2"
    else
        echo "not ok $n - $2"
        bad=1
        tail -n 15 log err 2>/dev/null | sed 's/^/# /'
    fi
}
