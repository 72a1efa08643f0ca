# SPDX-License-Identifier: Apache-2.0
# python.sh: tests next to Python packages; `.` it first. $PYTHON is the Python; it has what the test needs, or the
# test is skipped.
PYTHON=${TORCH_PYTHON:-python3}
# Looks for them alone: to import torch, transformers and PEFT takes a processor 12 seconds.
has_python() { # modules, with commas
    "$PYTHON" - "$1" <<'END' 2>/dev/null
import importlib.util, sys
sys.exit(not all(importlib.util.find_spec(name) for name in sys.argv[1].split(", ")))
END
}
need_python() { # modules, with commas
    has_python "$1" && return
    echo "1..0 # SKIP '$PYTHON' does not have $1 (set TORCH_PYTHON)"
    exit 0
}
# What a test asks of its Python program, tests/interop/PROGRAM.py, is asked at once, at its end: a Python that imports
# torch takes seconds to start.
later() { # COMMAND ARGUMENT... '#' TEXT
    echo "$*" >>later
}
# TAP lines of each, which each.py prints, and one that all were asked.
answers() { # program
    "$PYTHON" -W ignore "$TOP/tests/interop/$1.py" each <later >answers 2>log
    local status=$?
    ok_lines answers
    ok $status "$(grep -c '^ok' answers) answers of $1.py"
}
# $vocab is a folder of real vocabularies and chat templates. Of tests that run at once, one fetches it.
need_vocab() {
    vocab=${VOCAB:-$TOP/build/vocab}
    mkdir -p "$TOP/build"
    if ! flock "$TOP/build/vocab.lock" "$PYTHON" "$TOP/scripts/fetch_vocab.py" "$vocab" >"$TEST_TMP/fetch.log" 2>&1; then
        sed 's/^/# /' "$TEST_TMP/fetch.log"
        echo "not ok 1 - the real vocabularies and templates are fetched into $vocab"
        echo "1..1"
        exit 1
    fi
}
