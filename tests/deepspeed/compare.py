# SPDX-License-Identifier: Apache-2.0
"""What DeepSpeed's own tools make of checkpoints, next to what ckpt-merge made of them.

python compare.py convert FOLDER...   FOLDER.safetensors: the weights of zero_to_fp32.py; FOLDER-universal: the universal
                                      checkpoint
python compare.py check FOLDER...     FOLDER-merged and FOLDER-all (with --all) of ckpt-merge against these; a line each"""
import glob
import os
import sys

import torch
from safetensors.torch import load_file, save_file

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def merged(folder):
    return {name: tensor for path in glob.glob(f"{folder}/*.safetensors") for name, tensor in load_file(path).items()}


def same(a, b):
    return a.dtype == b.dtype and torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def convert(folder):
    from deepspeed.checkpoint import ds_to_universal
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    state = get_fp32_state_dict_from_zero_checkpoint(folder)
    save_file({name: tensor.clone().contiguous() for name, tensor in state.items()}, f"{folder}.safetensors")
    sys.argv[1:] = ["--input_folder", f"{folder}/global_step3", "--output_folder", f"{folder}-universal",
                    "--num_extract_workers", "1", "--num_merge_workers", "1", "--inject_missing_state"]
    ds_to_universal.main(ds_to_universal.parse_arguments())


def check_weights(folder):
    expected, got = load_file(f"{folder}.safetensors"), merged(f"{folder}-merged")
    for name, tensor in expected.items():
        tied = name == HEAD and name not in got and torch.equal(tensor, expected[EMBEDDING])
        assert tied or same(got[name], tensor), f"{name} differs"
    more = sorted(set(got) - set(expected))  # frozen parameters of ZeRO-1
    if more:
        module = torch.load(f"{folder}/global_step3/mp_rank_00_model_states.pt", weights_only=False)["module"]
        assert all(same(got[name], module[name]) for name in more), "a frozen parameter is not the module's"
    return len(got), len(more)


def check_state(folder):
    got, count = merged(f"{folder}-all"), 0
    for path in sorted(glob.glob(f"{folder}-universal/zero/*/*.pt")):
        name, slot = path.split("/")[-2:]
        value = torch.load(path, weights_only=False)
        value = value["param"] if isinstance(value, dict) else value
        if slot == "step.pt" or (name == HEAD and name not in got):
            continue
        mine = got[name if slot == "fp32.pt" else f"state.{name}.{slot[:-3]}"].float()
        assert torch.equal(mine, value.float().reshape(mine.shape)), f"{name}: {slot} differs"
        count += 1
    assert count
    return count


if __name__ == "__main__":
    action, cases = sys.argv[1], sys.argv[2:]
    for case in cases:
        if action == "convert":
            convert(case)
            continue
        weights, more = check_weights(case)
        print(f"{os.path.basename(case)}: {weights} weights, {more} of them dropped by zero_to_fp32.py;",
              check_state(case), "tensors of the universal checkpoint")
