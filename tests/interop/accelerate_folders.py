# SPDX-License-Identifier: Apache-2.0
"""Folders as accelerate's save_state and transformers' Trainer write them with FSDP. IMITATIONS: neither shards on a CPU,
so that the models are wrapped here, and accelerate's own save_fsdp_model and save_fsdp_optimizer get an object in place
of its plugin; the Trainer's other files are made as its source makes them.

    accelerate_folders.py FOLDER    FOLDER/{sharded,sharded1,full,full2,local}/checkpoint-500 and FOLDER/expected-*.safetensors
"""
import functools
import json
import logging
import os
import sys
import types
import warnings

import torch
import torch.distributed as dist
import transformers
from accelerate.utils import fsdp_utils
from safetensors.torch import save_file
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullOptimStateDictConfig, FullStateDictConfig, FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import LocalOptimStateDictConfig, LocalStateDictConfig, ShardedOptimStateDictConfig
from torch.distributed.fsdp import ShardedStateDictConfig, StateDictType, fully_shard
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

import ranks

CASES = {"sharded": (2, StateDictType.SHARDED_STATE_DICT), "sharded1": (1, StateDictType.SHARDED_STATE_DICT),
         "full": (1, StateDictType.FULL_STATE_DICT), "full2": (2, StateDictType.FULL_STATE_DICT),
         "local": (1, StateDictType.LOCAL_STATE_DICT)}
CONFIGS = {StateDictType.SHARDED_STATE_DICT: (ShardedStateDictConfig, ShardedOptimStateDictConfig),
           StateDictType.FULL_STATE_DICT: (FullStateDictConfig, FullOptimStateDictConfig),
           StateDictType.LOCAL_STATE_DICT: (LocalStateDictConfig, LocalOptimStateDictConfig)}


def wrapped(version):
    torch.manual_seed(3)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=48, hidden_size=16, intermediate_size=28, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        tie_word_embeddings=False))
    config = model.config
    if version == 1:
        policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={type(model.model.layers[0])})
        return config, FSDP(model, device_id=torch.device("cpu"), auto_wrap_policy=policy, use_orig_params=True)
    mesh = init_device_mesh("cpu", (2,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    return config, fully_shard(model, mesh=mesh)


def expected(model, optimizer, version, path):
    """All weights, and moments of FSDP2, gathered by torch."""
    state = {}
    if version == 1:
        with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
            weights = dict(model.state_dict())
    else:
        weights, state = get_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True))
    if dist.get_rank() == 0:
        save_file({key: value.contiguous() for key, value in weights.items()}, f"{path}-model.safetensors")
        save_file({f"state.{key}.{slot}": value.clone() for key, slots in state.get("state", {}).items()
                   for slot, value in slots.items() if slot.startswith("exp")}, f"{path}-optim.safetensors")


def trainer_files(rank, out, config, scheduler):
    """trainer.py: _save_optimizer_and_scheduler, _save_rng_state, TrainerState.save_to_json."""
    torch.save({"cpu": torch.random.get_rng_state()}, f"{out}/rng_state_{rank}.pth")
    if rank:
        return
    torch.save(scheduler.state_dict(), f"{out}/scheduler.pt")
    with open(f"{out}/trainer_state.json", "w") as file:
        json.dump({"global_step": 500, "log_history": []}, file)
    config.save_pretrained(out)
    with open(f"{out}/tokenizer_config.json", "w") as file:
        json.dump({"model_max_length": 64}, file)


def work(rank, world, folder):
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    fsdp_utils.logger = logging.getLogger("imitation")  # its own one wants an Accelerator
    for name, (version, kind) in CASES.items():
        out = f"{folder}/{name}/checkpoint-500"
        config, model = wrapped(version)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        model(torch.arange(12).reshape(2, 6)).logits.square().mean().backward()
        optimizer.step()
        model_config, optim_config = CONFIGS[kind]
        plugin = types.SimpleNamespace(fsdp_version=version, state_dict_type=kind, state_dict_config=model_config(),
                                       optim_state_dict_config=optim_config())
        accelerator = types.SimpleNamespace(num_processes=world, process_index=rank, is_main_process=rank == 0)
        fsdp_utils.save_fsdp_model(plugin, accelerator, model, out)
        if kind != StateDictType.LOCAL_STATE_DICT:
            fsdp_utils.save_fsdp_optimizer(plugin, accelerator, optimizer, model, out)
        trainer_files(rank, out, config, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0))
        expected(model, optimizer, version, f"{folder}/{name}/expected")
        dist.barrier()


if __name__ == "__main__":
    ranks.run(work, 2, sys.argv[1])
