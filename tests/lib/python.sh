# SPDX-License-Identifier: Apache-2.0
# python.sh: tests next to Python packages; `.` it first. $PYTHON is the Python; it has what the test needs, or the
# test is skipped.
PYTHON=${TORCH_PYTHON:-python3}
need_python() { # modules, with commas
    "$PYTHON" -c "import $1" 2>/dev/null && return
    echo "1..0 # SKIP '$PYTHON' cannot import $1 (set TORCH_PYTHON)"
    exit 0
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
