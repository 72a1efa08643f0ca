# SPDX-License-Identifier: Apache-2.0
"""For carried.sh.

bf16 FOLDER OUT          the model of FOLDER in bf16
compare (FOLDER MERGED MERGED)...    each MERGED loads in transformers, and has the names, shapes and types of FOLDER;
                         says how many tensors of images are the same, and how many of texts are not
"""
import sys

import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM


def bf16(folder, out):
    AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).save_pretrained(out)


def compare(folder, *others):
    for merged in others[:2]:
        compare_one(folder, merged)
    if others[2:]:
        compare(*others[2:])


def compare_one(folder, merged):
    before, after = (load_file(f"{f}/model.safetensors") for f in (folder, merged))
    kinds = [{k: (v.shape, v.dtype) for k, v in x.items()} for x in (before, after)]
    assert kinds[0] == kinds[1], set(kinds[0].items()) ^ set(kinds[1].items())
    _, info = AutoModelForCausalLM.from_pretrained(merged, output_loading_info=True)
    assert not any(info.values()), info
    same = [k for k in before if before[k].equal(after[k])]
    images = [k for k in same if not k.startswith("language_model.")]
    assert len(images) == len(same), same
    print(f"{len(images)} tensors of images are the same, {len(before) - len(same)} of texts are not")


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    {"bf16": bf16, "compare": compare}[sys.argv[1]](*sys.argv[2:])
