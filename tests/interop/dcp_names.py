# SPDX-License-Identifier: Apache-2.0
"""Small torch checkpoints whose state dicts are laid out in unusual ways.

    dcp_names.py make FOLDER           FOLDER/NAME: what tests/data/dcp-names holds
    dcp_names.py check FOLDER          torch finds in each FOLDER/NAME what make saves; prints what differs
"""
import os
import sys

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.stateful import Stateful


class App(Stateful):
    def __init__(self, state):
        self.state = state

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


def numbers(*shape):
    numbers.seed += 1
    return torch.randn(*shape, generator=torch.Generator().manual_seed(numbers.seed))


def model():
    return {"model.norm.weight": numbers(4)}


def moments(name="model.norm.weight"):
    return {name: {"exp_avg": numbers(4), "step": torch.tensor(3.0)}}


def optim(name="model.norm.weight"):
    return {"state": moments(name), "param_groups": [{"lr": 0.1, "params": [name]}]}


def cases():
    """{name: state dict}; equal in every call."""
    numbers.seed = 0
    return {
        "app-and-others": {"app": App({"model": model(), "optim": optim(), "ema": model()}),
                           "step": torch.tensor(17), "rng_state": torch.zeros(2, dtype=torch.uint8)},
        "two-optimizers": {"model_g": model(), "model_d": model(), "optim_g": optim(), "optim_d": optim()},
        "actor-critic": {"actor": model(), "critic": model(), "actor_optim": optim(), "critic_optim": optim()},
        "optimizer-behind": {"net": model(), "opt": optim()},
        "no-groups": {"net": model(), "opt": {"state": moments()}},
        "buffer-named-step": {"model": {**model(), "step": torch.tensor(1)}, "step": torch.tensor(3)},
        "outside-and-inside": {"model": {"w": numbers(2)}, "w": numbers(2)},
        "state-is-no-optimizer": {"state": {"w": numbers(2), "b": numbers(1)}},
        "name-reserved": {"model": {"__metadata__": numbers(2), "w": numbers(2)}},
        "name-surrogate": {"model": {"a\udc80b": numbers(2), "w": numbers(2)}, "x\udc80": 1, "epoch": 2},
        "name-2000": {"model": {"z" * 2000: numbers(2), "w": numbers(2)}},
        "name-empty": {"": numbers(2), "w": numbers(2)},
        "name-with-zero": {"a\0b": numbers(2), "w": numbers(2)},
        "nine-dimensions": {"model": {"d9": numbers(1, 2, 1, 2, 1, 2, 1, 2, 1), "w": numbers(2)}},
    }


def make(folder):
    for name, state in cases().items():
        dcp.save(state, checkpoint_id=f"{folder}/{name}", no_dist=True)


def blank(value):
    """The same structure, with zeros for tensors."""
    if isinstance(value, App):
        return App(blank(value.state))
    if isinstance(value, dict):
        return {key: blank(item) for key, item in value.items()}
    if isinstance(value, list):
        return [blank(item) for item in value]
    return torch.zeros_like(value) if isinstance(value, torch.Tensor) else value


def equal(a, b):
    if isinstance(a, App):
        return equal(a.state, b.state)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(equal, a, b))
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    return a == b


def check(folder):
    """Prints what differs, nothing if all is equal."""
    for name, want in cases().items():
        if os.path.isdir(f"{folder}/{name}"):
            have = blank(want)
            dcp.load(have, checkpoint_id=f"{folder}/{name}", no_dist=True)
            if not equal(have, want):
                print(f"{name} differs")


if __name__ == "__main__":
    make(sys.argv[2]) if sys.argv[1] == "make" else check(sys.argv[2])
