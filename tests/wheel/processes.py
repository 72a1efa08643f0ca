# SPDX-License-Identifier: Apache-2.0
"""processes.py TOP: threads, forks while threads read, workers of PyTorch."""

import os
import sys
import threading

import torch

import fsdp_ckpt

sys.path.insert(0, sys.argv[1] + "/tests/wheel/lib")
from tap import ok  # noqa: E402

torch.manual_seed(2)
torch.set_num_threads(1)
os.mkdir("model")
tensors = {f"t{i}": torch.randn(64, 257) for i in range(40)}
torch.save(tensors, "model.pt")
fsdp_ckpt.reshard("model.pt", "ckpt", 3, compress="zstd")
ckpt = fsdp_ckpt.open("ckpt")


def right(checkpoint, names=None):
    return all(torch.equal(checkpoint.read(name, "torch"), tensors[name]) for name in names or tensors)


# ---- threads --------------------------------------------------------------------------------------

results = []
threads = [threading.Thread(target=lambda: results.append(right(ckpt))) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
ok(results == [True] * 8, "8 threads read all tensors at once")

closing = fsdp_ckpt.open("ckpt")
outcomes = []
began = threading.Barrier(5)


def read_until_closed():
    began.wait()
    try:
        while True:
            if not right(closing, ["t1", "t7"]):
                outcomes.append("wrong")
                return
    except fsdp_ckpt.ArgumentError as error:
        outcomes.append("closed" if "closed" in str(error) else str(error))


threads = [threading.Thread(target=read_until_closed) for _ in range(4)]
for thread in threads:
    thread.start()
began.wait()
closing.close()
for thread in threads:
    thread.join()
ok(outcomes == ["closed"] * 4, f"closed while others read: {outcomes}")

# ---- fork -----------------------------------------------------------------------------------------


def child_status(work):
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = 0 if work() else 2
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


ok(child_status(lambda: right(ckpt)) == 0 and right(ckpt), "a child reads what its parent has opened, and so does the parent")
mapped = fsdp_ckpt.open("ckpt").merge("merged.safetensors") and fsdp_ckpt.open("merged.safetensors").map("t3", "torch")
ok(child_status(lambda: torch.equal(mapped, tensors["t3"])) == 0, "a mapping is the child's, too")

stop = threading.Event()
wrong = []


def keep_reading():
    while not stop.is_set():
        if not right(ckpt, ["t5", "t6"]):
            wrong.append(1)


threads = [threading.Thread(target=keep_reading) for _ in range(3)]
for thread in threads:
    thread.start()
statuses = [child_status(lambda: right(ckpt, ["t1", "t2"])) for _ in range(40)]
stop.set()
for thread in threads:
    thread.join()
ok(statuses == [0] * 40 and not wrong, "40 forks while 3 threads read: every child reads")


def fork_in_progress(done, total):
    forked.append(child_status(lambda: right(ckpt, ["t9"])))


forked = []
fsdp_ckpt.verify(ckpt, progress=fork_in_progress)
ok(forked and not any(forked), "a child of a verification under way reads")
again = fsdp_ckpt.open("ckpt")
ok(len(again.tensors) == 40, "opened")
os.rename("ckpt", "was")
fsdp_ckpt.reshard("merged.safetensors", "ckpt", 2, include=["t1"])
pid = os.fork()
if pid == 0:
    try:
        again.read("t1", "torch")
        os._exit(1)
    except fsdp_ckpt.DamagedError as error:
        os._exit(0 if "another checkpoint" in str(error) else 2)
ok(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, "a child refuses another checkpoint under the name")
os.rename("ckpt", "other")
os.rename("was", "ckpt")


class Set(torch.utils.data.Dataset):
    def __init__(self):
        self.checkpoint = ckpt

    def __len__(self):
        return len(tensors)

    def __getitem__(self, i):
        return self.checkpoint.read(f"t{i}", "torch")


loader = torch.utils.data.DataLoader(Set(), num_workers=2, multiprocessing_context="fork")
ok(all(torch.equal(batch[0], tensors[f"t{i}"]) for i, batch in enumerate(loader)), "workers of a DataLoader read")
