#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Parquet and Arrow are refused with a command that makes JSON Lines of them: that very command, taken from the error,
# runs, and what it makes is what pyarrow read. pyarrow is fetched from PyPI where the Python has none.
# run: timeout=300
set -u
cd "$TEST_TMP" || exit 1
. "$TOP/tests/lib/tap.sh"
. "$TOP/tests/lib/train.sh"
python=${TORCH_PYTHON:-python3}
if ! "$python" -c 'import pyarrow' 2>/dev/null; then
    "$python" -m pip install --quiet --no-input --disable-pip-version-check --target site pyarrow >/dev/null 2>&1
    export PYTHONPATH=$PWD/site
fi
if ! "$python" -c 'import pyarrow' 2>/dev/null; then
    echo "1..0 # SKIP no Python with pyarrow (set TORCH_PYTHON), and PyPI does not give it"
    exit 0
fi
# A link would lose the packages of a virtual environment.
mkdir bin && printf '#!/bin/sh\nexec "%s" "$@"\n' "$(command -v "$python")" >bin/python3 && chmod +x bin/python3
export PATH=$PWD/bin:$PATH

make_input 10
cat >run.yaml <<'END'
model: {path: model, init: random}
data: {path: text, seq_len: 16}
train: {steps: 1, global_batch_size: 2}
optim: {lr: 1.0e-3}
END
cat >make.py <<'END'
import datetime, json, pyarrow as a, pyarrow.parquet
rows = {"text": [f"row {i}: \u00e4\u4e2d\U0001f600 \"quoted\" \\ and\nmore" for i in range(3000)],
        "raw": [b"bytes"] * 3000, "when": [datetime.datetime(2026, 1, 2)] * 3000, "tags": [["a", None]] * 3000}
table = a.table(rows)
pyarrow.parquet.write_table(table, "p.parquet", row_group_size=700)
with a.OSFile("file.arrow", "wb") as f, a.ipc.new_file(f, table.schema) as w:
    w.write_table(table, max_chunksize=500)
with a.OSFile("stream.arrow", "wb") as f, a.ipc.new_stream(f, table.schema) as w:
    w.write_table(table, max_chunksize=500)
END
cat >check.py <<'END'
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
assert len(rows) == 3000
assert all(r == {"text": f"row {i}: \u00e4\u4e2d\U0001f600 \"quoted\" \\ and\nmore", "raw": "bytes",
                 "when": "2026-01-02 00:00:00", "tags": ["a", None]} for i, r in enumerate(rows)), rows[0]
END
python3 make.py >log 2>&1
ok $? "pyarrow writes the tables"
for name in p.parquet file.arrow stream.arrow; do
    run run.yaml data.path=$name
    ok "$([ $? = 2 ] && holds err "$name: "; echo $?)" "$name is refused"
    command=$(grep -o -m 1 'python3 -c .*\.jsonl' err)
    bash -c "$command" >log 2>&1 && python3 check.py "${name%.*}.jsonl" >>log 2>&1
    ok $? "the command makes JSON Lines of it"
    run run.yaml data.format=jsonl data.path="${name%.*}.jsonl"
    ok $? "which a run trains on"
done

echo "1..$n"
exit $bad
