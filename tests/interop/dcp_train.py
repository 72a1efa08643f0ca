# SPDX-License-Identifier: Apache-2.0
"""A small FSDP2 run of a Llama with AdamW (or SGD), in the way of torch's own examples.

Usage: dcp_train.py MODEL TOKENS WORLD FIRST LAST [--sgd MOMENTUM] [--load CHECKPOINT]
                    [--save CHECKPOINT [--count]] LOSSES
  MODEL   a folder that transformers reads; "make" in place of all makes one
  TOKENS  uint16, rows of 33 tokens, four rows a step
  trains steps FIRST to LAST - 1, after loading a DCP checkpoint if asked; saves one at the end,
  with LAST as its step if asked;
  writes the losses as a JSON list
"""
import argparse
import json
import sys

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from transformers import LlamaConfig, LlamaForCausalLM

import ranks

ROWS, SEQ = 4, 32


def make(model, tokens):
    torch.manual_seed(5)
    config = LlamaConfig(vocab_size=250, hidden_size=48, intermediate_size=136, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
                         tie_word_embeddings=False)
    LlamaForCausalLM(config).save_pretrained(model)
    np.random.default_rng(5).integers(0, 250, ROWS * 12 * (SEQ + 1)).astype("<u2").tofile(tokens)


def train(rank, world, args):
    model = LlamaForCausalLM.from_pretrained(args.model, dtype=torch.float32,
                                             attn_implementation="eager")
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    optim = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8,
                              weight_decay=0.1)
    if args.sgd is not None:
        optim = torch.optim.SGD(model.parameters(), lr=0.05, momentum=args.sgd, weight_decay=0.01)
    if args.load:
        weights, moments = get_state_dict(model, optim)
        state = {"model": weights, "optim": moments}
        dcp.load(state, checkpoint_id=args.load)
        set_state_dict(model, optim, model_state_dict=state["model"],
                       optim_state_dict=state["optim"])
    data = torch.from_numpy(np.fromfile(args.tokens, "<u2").astype(np.int64)).view(-1, ROWS, SEQ + 1)
    losses = []
    for step in range(args.first, args.last):
        mine = data[step][rank * ROWS // world:(rank + 1) * ROWS // world]
        logits = model(mine[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), mine[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optim.step()
        optim.zero_grad()
        total = loss.detach().clone()
        dist.all_reduce(total)
        losses.append(total.item() / world)
    if args.save:
        weights, moments = get_state_dict(model, optim)
        state = {"model": weights, "optim": moments}
        if args.count:
            state["step"] = args.last
        dcp.save(state, checkpoint_id=args.save)
    if rank == 0:
        with open(args.losses, "w") as file:
            json.dump(losses, file)


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(*sys.argv[2:])
        sys.exit()
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("tokens")
    parser.add_argument("world", type=int)
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("losses")
    parser.add_argument("--sgd", type=float)
    parser.add_argument("--load")
    parser.add_argument("--save")
    parser.add_argument("--count", action="store_true")
    arguments = parser.parse_args()
    ranks.run(train, arguments.world, arguments)
