# SPDX-License-Identifier: Apache-2.0
# Reads what metrics_to_wandb.py has written in W&B's offline mode, and compares it with metrics.jsonl. Prints TAP.
import glob
import json
import math
import struct
import sys
import zlib

from wandb.proto import wandb_internal_pb2

folder, metrics = sys.argv[1:]
files = glob.glob(folder + "/wandb/offline-run-*/*.wandb")
print(f"{'ok' if len(files) == 1 else 'not ok'} 1 - one run was written")


def records(path):
    """Protobuf messages in a log of blocks of 32 KiB: checksum, length and kind (whole, first, middle, last)."""
    data, at, whole = open(path, "rb").read(), 7, b""
    assert data[:4] == b":W&B"
    while at + 7 <= len(data):
        if at % 32768 > 32768 - 7:
            at += 32768 - at % 32768
            continue
        crc, length, kind = struct.unpack_from("<IHB", data, at)
        part = data[at + 7 : at + 7 + length]
        assert zlib.crc32(bytes([kind]) + part) == crc, f"bad checksum at {at}"
        at += 7 + length
        whole = part if kind in (1, 2) else whole + part
        if kind in (1, 4):
            yield whole


got, names, config = [], [], {}
for data in records(files[0]):
    record = wandb_internal_pb2.Record()
    record.ParseFromString(data)
    if record.HasField("history"):
        items = {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in record.history.item}
        got.append({k: v for k, v in items.items() if k not in ("_timestamp", "_runtime")})
    if record.HasField("run"):
        names.append((record.run.project, record.run.display_name))
        config.update({i.key: json.loads(i.value_json) for i in record.run.config.update})


def expected(row):
    out = {"_step": row["step"]}
    for key, value in row.items():
        if isinstance(value, list):
            out.update({f"{key}/{i}": v for i, v in enumerate(value)})
        elif key != "step":
            out[key] = "NaN" if value is None else value
    return out


def same(a, b):
    nan = lambda x: x == "NaN" or (isinstance(x, float) and math.isnan(x))
    return a.keys() == b.keys() and all(a[k] == b[k] or (nan(a[k]) and nan(b[k])) for k in a)


rows = [json.loads(line) for line in open(metrics) if line.startswith('{"step"') and line.endswith("}\n")]
good = len(rows) > 5 and len(got) == len(rows) and all(same(g, expected(r)) for g, r in zip(got, rows))
print(f"{'ok' if good else 'not ok'} 2 - {len(rows)} steps with all of their keys")
if not good:
    print(f"# {len(got)}: {got[:1]} {[expected(r) for r in rows[:1]]}")
print(f"{'ok' if names and names[0] == ('proj', 'my run') else 'not ok'} 3 - project and name: {names}")
print(f"{'ok' if 'global_batch_size' in config.get('yaml', '') else 'not ok'} 4 - the configuration is kept")
