#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What accelerate and DeepSpeed estimate of a model's memory, as JSON.

usage: estimators.py CONFIG_DIR NODES GPUS_OF_A_NODE

Runs in an environment with transformers, accelerate and deepspeed (scripts/with_deepspeed.sh).
"""
import json
import sys

import torch
from accelerate import init_empty_weights
from accelerate.utils import calculate_maximum_sizes
from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs
from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs
from transformers import AutoConfig, AutoModelForCausalLM

folder, nodes, gpus = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with init_empty_weights():
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32)
total_nbytes, _ = calculate_maximum_sizes(model)
params = sum(p.numel() for p in {id(p): p for p in model.parameters()}.values())
largest = max(sum(p.numel() for p in m.parameters(recurse=False)) for m in model.modules())
ways = {"cpu_offload": False, "cpu_offload_params": False}
print(json.dumps({
    "parameters": params,
    # "Training with Adam" of `accelerate estimate-memory`: four times the weights, on one device
    "accelerate": 4 * total_nbytes,
    "zero2": estimate_zero2_model_states_mem_needs(params, gpus, nodes, cpu_offload=False)[1],
    "zero3": estimate_zero3_model_states_mem_needs(params, largest, gpus, nodes, cpu_offload=False,
                                                   cpu_offload_params=False, zero_init=True)[1],
    "zero3_offload": estimate_zero3_model_states_mem_needs(params, largest, gpus, nodes, cpu_offload=True,
                                                           cpu_offload_params=False, zero_init=True)[1],
}))
