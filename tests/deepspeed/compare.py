# SPDX-License-Identifier: Apache-2.0
"""What DeepSpeed's own tools make of a checkpoint, next to what ckpt-merge and ckpt-reshard made of it.

python compare.py convert FOLDER               zero_to_fp32.py's weights as FOLDER.safetensors; prints what it
                                               refuses
python compare.py universal FOLDER             a universal checkpoint of it as FOLDER-universal
python compare.py weights FOLDER MERGED        equal, but for what zero_to_fp32.py drops or cannot know
python compare.py state UNIVERSAL MERGED       weights and moments of a merge of all, next to the universal files"""
import glob
import os
import sys

import torch
from safetensors.torch import load_file, save_file


def merged(folder):
    return {name: tensor for path in glob.glob(f"{folder}/*.safetensors") for name, tensor in load_file(path).items()}


def bits(tensor):
    return tensor.contiguous().view(torch.uint8)


def convert(folder):
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    state = get_fp32_state_dict_from_zero_checkpoint(folder)
    save_file({name: tensor.clone().contiguous() for name, tensor in state.items()}, f"{folder}.safetensors")


def universal(folder):
    from deepspeed.checkpoint import ds_to_universal

    arguments = ["--input_folder", f"{folder}/global_step3", "--output_folder", f"{folder}-universal",
                 "--num_extract_workers", "1", "--num_merge_workers", "1", "--inject_missing_state"]
    sys.argv[1:] = arguments
    ds_to_universal.main(ds_to_universal.parse_arguments())


def module_of(folder):
    path = f"{folder}/global_step3/mp_rank_00_model_states.pt"
    return torch.load(path, weights_only=False) if os.path.exists(path) else {"module": {}, "shared_params": {}}


def weights(folder, out):
    expected, got = load_file(f"{folder}.safetensors"), merged(out)
    states = module_of(folder)
    for name, tensor in expected.items():
        if name in got:
            assert torch.equal(bits(got[name]), bits(tensor)), f"{name} differs"
        else:
            assert name == "lm_head.weight" and torch.equal(tensor, expected["model.embed_tokens.weight"]), name
    for name in set(got) - set(expected):  # frozen parameters of ZeRO-1
        assert torch.equal(bits(got[name]), bits(states["module"][name])), f"{name} is not the module's"
    print(len(got), "equal,", len(set(got) - set(expected)), "more")


def state(folder, out):
    got, count = merged(out), 0
    for path in sorted(glob.glob(f"{folder}/zero/*/*.pt")):
        name, slot = path.split("/")[-2:]
        value = torch.load(path, weights_only=False)
        value = value["param"] if isinstance(value, dict) else value
        name = name if slot == "fp32.pt" else f"state.{name}.{slot[:-3]}"
        if slot == "step.pt" or name == "lm_head.weight" and name not in got:
            continue
        mine = got[name].float()
        assert torch.equal(mine, value.float().reshape(mine.shape)), f"{name} differs"
        count += 1
    print(count, "equal")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
