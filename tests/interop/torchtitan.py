# SPDX-License-Identifier: Apache-2.0
"""torchtitan's checkpoints, laid out by this script: torchtitan itself does not run here. Names, entries and the order of
rows are those of its source (models/{llama3,qwen3}/state_dict_adapter.py, components/checkpointer), the files torch's.

    torchtitan.py FOLDER    FOLDER/{llama,qwen3,qwen3_moe}/{titan,titan2025,hf}, and optim.safetensors: the moments
"""
import sys
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import transformers
from safetensors.torch import load_file, save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import ranks

SIZES = dict(vocab_size=48, hidden_size=16, intermediate_size=28, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, head_dim=4, tie_word_embeddings=False, bos_token_id=1, eos_token_id=2)
MODELS = {"llama": ("llama", {}), "qwen3": ("qwen3", {}),
          "qwen3_moe": ("qwen3_moe", dict(num_experts=3, num_experts_per_tok=2, moe_intermediate_size=12))}
NAMES = {"self_attn.q_proj": "attention.qkv_linear.wq", "self_attn.k_proj": "attention.qkv_linear.wk",
         "self_attn.v_proj": "attention.qkv_linear.wv", "self_attn.o_proj": "attention.wo",
         "self_attn.q_norm": "attention.q_norm", "self_attn.k_norm": "attention.k_norm",
         "mlp.gate_proj": "feed_forward.w1", "mlp.up_proj": "feed_forward.w3", "mlp.down_proj": "feed_forward.w2",
         "mlp.gate": "moe.router.gate", "input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm"}
OUTER = {"model.embed_tokens.weight": "tok_embeddings.weight", "model.norm.weight": "norm.weight",
         "lm_head.weight": "lm_head.weight"}
STACKS = {"gate_proj": "w1_EFD", "up_proj": "w3_EFD", "down_proj": "w2_EDF"}


def to_titan(weights, pairs):
    """The adapter's from_hf. pairs: rows of queries and keys turn as neighbours."""
    out, stacks = {}, {}
    for name, value in weights.items():
        if name in OUTER:
            out[OUTER[name]] = value
            continue
        _, _, layer, rest = name.split(".", 3)
        if ".experts." in name:
            expert, part = rest.split(".")[2:4]
            key = f"layers.{layer}.moe.routed_experts.inner_experts.{STACKS[part]}"
            stacks.setdefault(key, {})[int(expert)] = value
            continue
        module, kind = rest.rsplit(".", 1)
        if pairs and module in ("self_attn.q_proj", "self_attn.k_proj"):
            heads = 4 if module.endswith("q_proj") else 2
            rows, columns = value.shape
            value = value.view(heads, 2, rows // heads // 2, columns).transpose(1, 2).reshape(rows, columns)
        out[f"layers.{layer}.{NAMES[module]}.{kind}"] = value
    return out | {key: torch.stack([parts[i] for i in sorted(parts)]) for key, parts in stacks.items()}


def work(rank, world, folder):
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    mesh = init_device_mesh("cpu", (world,))
    for name, (kind, more) in MODELS.items():
        out = f"{folder}/{name}"
        torch.manual_seed(5)
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(kind, **SIZES, **more))
        if rank == 0:
            model.save_pretrained(f"{out}/hf")
        dist.barrier()
        weights = load_file(f"{out}/hf/model.safetensors")
        moments = {slot: {key: torch.randn_like(value) for key, value in weights.items()} for slot in ("exp_avg", "exp_avg_sq")}
        titan = {key: distribute_tensor(value, mesh, [Shard(0)]) for key, value in to_titan(weights, kind == "llama").items()}
        optimizer = {f"state.{key}.step": torch.tensor(7.0) for key in titan}
        optimizer |= {f"param_groups.{key}.lr": 1e-3 for key in titan}
        for slot, values in moments.items():
            optimizer |= {f"state.{key}.{slot}": distribute_tensor(value, mesh, [Shard(0)])
                          for key, value in to_titan(values, kind == "llama").items()}
        rest = {"optimizer": optimizer, "lr_scheduler": {"last_epoch": 7}, "train_state": {"step": 7, "ntokens_seen": 900},
                "dataloader": {f"dp_rank_{rank}": b"pickled", "world_size": world}}
        dcp.save(titan | rest, checkpoint_id=f"{out}/titan/step-7")
        older = {key.replace("attention.qkv_linear.", "attention.").replace("lm_head.", "output."): value
                 for key, value in titan.items()}
        dcp.save(older, checkpoint_id=f"{out}/titan2025/step-7")
        if rank == 0:
            save_file({f"state.{key}.{slot}": value for slot, values in moments.items() for key, value in values.items()},
                      f"{out}/optim.safetensors")


if __name__ == "__main__":
    ranks.run(work, 2, sys.argv[1])
