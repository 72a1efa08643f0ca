# SPDX-License-Identifier: Apache-2.0
# Reads a folder of log.tensorboard with TensorBoard's own reader and compares it with the run's metrics.jsonl.
# Records are counted one by one: a bad checksum ends a file without a word. Prints TAP.
import json
import os
import struct
import subprocess
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

folder, metrics, print_metrics = sys.argv[1:]
count = 0


def ok(good, text):
    global count
    count += 1
    print(f"{'ok' if good else 'not ok'} {count} - {text}")
    return good


def near(a, b):
    return a == b or abs(a - b) <= 1e-6 * max(abs(a), abs(b))  # a scalar is a float of 32 bits


rows = [json.loads(line) for line in open(metrics)]
steps = [row["step"] for row in rows]
size = {"scalars": 0, "histograms": 0, "tensors": 0}
events = EventAccumulator(folder, size_guidance=size)
events.Reload()
tags = events.Tags()

# The table says which key has which tag.
table = {}
for line in print_metrics.splitlines()[1:]:
    if line and line[0] != " ":
        key, tag = line[:18].strip(), line[29:48].strip()
        if key != "-" and tag != "-":
            table[key] = tag
ok(len(table) > 20, f"{len(table)} keys have tags")

for key, tag in table.items():
    if key == "rows_by_source":
        there = {tag + f"/{i}": [(r["step"], r[key][i]) for r in rows] for i in range(len(rows[0].get(key, [])))}
    else:
        there = {tag: [(r["step"], r[key]) for r in rows if key in r]}
    for name, expected in there.items():
        got = [(e.step, e.value) for e in events.Scalars(name)] if name in tags["scalars"] else []
        same = len(got) == len(expected) and all(a[0] == b[0] and near(a[1], b[1]) for a, b in zip(got, expected))
        if expected and not ok(same, f"{name}: {len(expected)} points"):
            print(f"# got {got[:5]}, expected {expected[:5]}")
        if not expected and got:
            ok(False, f"{name} is there, {key} is not")

walls = [e.wall_time for e in events.Scalars("train/loss")]
ok(all(abs(a - r["wall"]) < 2e-3 for a, r in zip(walls, rows)), "events have the steps' time")
ok(sorted(set(steps)) == steps, "no step comes twice")

# ---- what comes every few steps
every = [step for step in steps if step % 5 == 0]
histograms = events.Histograms("grad_norm_of_units")
ok([h.step for h in histograms] == every, f"histograms at steps {every}")
units = [tag for tag in tags["scalars"] if tag.startswith("grad_norm_of_units/")]
ok(len(units) > 2 and "grad_norm_of_units/(root)" in units, f"units: {units}")
whole = {row["step"]: row["grad_norm"] for row in rows}
squares = {step: sum(e.value**2 for u in units for e in events.Scalars(u) if e.step == step) for step in every}
for h in histograms:
    v = h.histogram_value
    ok(abs(squares[h.step] ** 0.5 / whole[h.step] - 1) < 1e-5, f"step {h.step}: the units' norms make the whole one")
    ok(v.num == len(units) == sum(v.bucket) and near(v.sum_squares, squares[h.step]) and v.min <= v.max <= v.bucket_limit[-1] * (1 + 1e-9),
       f"step {h.step}: the histogram has each once")

# ---- texts
text = lambda tag: [(e.step, e.tensor_proto.string_val[0].decode()) for e in events.Tensors(tag)]
starts = text("run/start")
ok("start 1, at step 0" in starts[0][1], f"the first start: {starts[0]}")
ok("    train:\n" in text("run/configuration")[0][1], "the configuration is a block of code")

# ---- the files, record by record
files = sorted(os.listdir(folder))
attempts = max(row["attempt"] for row in rows)
ok(len(files) >= attempts, f"a file for each start: {files}")
nrecords = nloaded = 0
for name in files:
    data = open(os.path.join(folder, name), "rb").read()
    at = 0
    while at < len(data):
        at += 8 + 4 + struct.unpack_from("<Q", data, at)[0] + 4
        nrecords += 1
    ok(at == len(data), f"{name} has whole records")
    nloaded += sum(1 for _ in EventFileLoader(os.path.join(folder, name)).Load())
ok(nloaded == nrecords, f"every one of {nrecords} records is good")

# ---- and the reader would see a bad one
name = os.path.join(folder, files[-1])
data = bytearray(open(name, "rb").read())
data[len(data) // 2] ^= 1
bad = os.path.join(os.path.dirname(metrics), "bad")
os.makedirs(bad, exist_ok=True)
open(os.path.join(bad, files[-1]), "wb").write(data)
try:
    seen = sum(1 for _ in EventFileLoader(os.path.join(bad, files[-1])).Load())
except Exception:
    seen = 0
ok(seen < sum(1 for _ in EventFileLoader(name).Load()), "a flipped bit would be seen")
print(f"1..{count}")
