# SPDX-License-Identifier: Apache-2.0
"""Sends the metrics of a run (log.metrics) to Weights & Biases.

  python3 scripts/metrics_to_wandb.py metrics.jsonl --project P [--name N] [--config run.yaml] [--follow]

Needs the package wandb. With WANDB_MODE=offline nothing is sent: the run is written below ./wandb, and `wandb sync`
sends it later. With --follow it waits for further lines until it is interrupted; it may be started before the run."""
import argparse
import json
import math
import os
import sys
import time


def rows(path, follow):
    """Each finished line of a step that is greater than all before. A resume puts another file in the place of this
    one; steps that are done again are left out, since W&B takes no step twice."""
    last = 0
    while True:
        if not follow or os.path.exists(path):
            with open(path) as lines:
                for line in lines:
                    row = parse(line)
                    if row and row["step"] > last:
                        last = row["step"]
                        yield row
        if not follow:
            return
        time.sleep(2)


def parse(line):
    try:
        row = json.loads(line) if line.endswith("\n") else None
    except ValueError:
        return None
    return row if isinstance(row, dict) and isinstance(row.get("step"), int) else None


def flat(row):
    """null, which stands for what is no number, as NaN; a list as one key for each element."""
    out = {}
    for key, value in row.items():
        if isinstance(value, list):
            out.update({f"{key}/{i}": v for i, v in enumerate(value)})
        elif key != "step":
            out[key] = math.nan if value is None else value
    return out


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("metrics", help="the file of log.metrics")
    p.add_argument("--project", default="fsdp")
    p.add_argument("--name", help="of the run; default: the folder of the metrics")
    p.add_argument("--config", help="run.yaml, or what --print-config prints, which is kept with the run")
    p.add_argument("--follow", action="store_true", help="wait for further lines")
    a = p.parse_args()
    if not a.follow and not os.path.exists(a.metrics):
        sys.exit(f"metrics_to_wandb.py: {a.metrics}: no such file (set log.metrics={a.metrics}, or give --follow to wait)")
    try:
        import wandb
    except ImportError:
        sys.exit("metrics_to_wandb.py: no package wandb: pip install wandb")

    name = a.name or os.path.basename(os.path.dirname(os.path.abspath(a.metrics)))
    config = {"yaml": open(a.config).read()} if a.config else None
    steps = rows(a.metrics, a.follow) if a.follow else list(rows(a.metrics, False))
    if not steps:
        sys.exit(f"metrics_to_wandb.py: {a.metrics} has no line of a step; is it the file of log.metrics?")
    count = 0
    with wandb.init(project=a.project, name=name, config=config) as run:
        try:
            for row in steps:
                run.log(flat(row), step=row["step"])
                count += 1
        except KeyboardInterrupt:
            pass
    print(f"{count} steps")


if __name__ == "__main__":
    main()
