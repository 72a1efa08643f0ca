# SPDX-License-Identifier: Apache-2.0
"""Checkpoints by DeepSpeed on CPU ranks: python make.py FOLDER WORLD CASE...

A case is STAGE-DTYPE, with -tied, -frozen, -offload, -small (several vectors a group) or -large (187 million parameters)
behind it, such as 3-bf16-frozen. Each becomes FOLDER/CASE-WORLDr/: a Llama after three steps of AdamW in two groups, saved at the tag global_step3."""
import os
import sys

import torch
import torch.multiprocessing as mp


def model_of(case):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(7)
    sizes = dict(vocab_size=53, hidden_size=20, intermediate_size=33, num_hidden_layers=2, num_attention_heads=2,
                 num_key_value_heads=1)
    if "large" in case:
        sizes = dict(vocab_size=16000, hidden_size=1024, intermediate_size=2816, num_hidden_layers=12,
                     num_attention_heads=16, num_key_value_heads=16)
    config = LlamaConfig(**sizes, max_position_embeddings=32, attention_bias=True,
                         tie_word_embeddings="tied" in case)
    model = LlamaForCausalLM(config)
    if "frozen" in case:
        for name in ("model.layers.0.mlp.up_proj.weight", "model.layers.0.input_layernorm.weight"):
            model.get_parameter(name).requires_grad_(False)
    return model


def run(rank, world, folder, cases):
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_SIZE": str(world),
                   "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": os.environ["PORT"], "DS_ACCELERATOR": "cpu"}
    import deepspeed
    import deepspeed.ops
    from deepspeed.accelerator import get_accelerator

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # else it is compiled
    # fp16 on the CPU is refused, though it computes; the files are those of a GPU's run.
    get_accelerator().is_fp16_supported = lambda: True
    for case in cases:
        stage, dtype = case.split("-")[:2]
        model = model_of(case)
        groups = [[p for p in model.parameters() if p.requires_grad and (p.ndim > 1) == wide] for wide in (True, False)]
        optimizer = torch.optim.AdamW([{"params": groups[0], "weight_decay": 0.1, "lr": 1e-2},
                                       {"params": groups[1], "weight_decay": 0.0, "lr": 2e-2}])
        zero = {"stage": int(stage), "stage3_param_persistence_threshold": 0}
        if "small" in case:
            zero["sub_group_size"] = 2000
        if "offload" in case:
            zero["offload_optimizer"] = {"device": "cpu"}
            if stage == "3":
                zero["offload_param"] = {"device": "cpu"}
        config = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1, "gradient_clipping": 1.0,
                  "zero_optimization": zero, "zero_allow_untested_optimizer": True,
                  "zero_force_ds_cpu_optimizer": False}
        if dtype in ("bf16", "fp16"):
            config[dtype] = {"enabled": True}
        engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
        generator = torch.Generator().manual_seed(rank)
        for _ in range(3):
            ids = torch.randint(0, 53, (2, 16), generator=generator)
            engine.backward(engine(input_ids=ids, labels=ids).loss)
            engine.step()
        engine.save_checkpoint(f"{folder}/{case}-{world}r", tag="global_step3")


if __name__ == "__main__":
    folder, world, cases = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    os.environ.setdefault("PORT", "29533")
    mp.spawn(run, (world, folder, cases), world)
