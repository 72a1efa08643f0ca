# SPDX-License-Identifier: Apache-2.0
"""Gloo ranks on this machine, for the scripts next to this one."""
import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def _rank(rank, world, fn, meeting, args):
    torch.set_num_threads(1)
    store = dist.FileStore(meeting, world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    fn(rank, world, *args)
    # Gloo's threads now and then abort a process that is being taken down ("terminate called
    # without an active exception"): once all are through, each leaves without that.
    store.add("through", 1)
    while store.add("through", 0) < world:
        time.sleep(0.01)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def run(fn, world, *args):
    """Calls fn(rank, world, *args) in `world` processes of one gloo group; raises what one of them raised. They are forked,
    so that none has to import torch again."""
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(_rank, (world, fn, f"{folder}/meeting", args), world, start_method="fork")
