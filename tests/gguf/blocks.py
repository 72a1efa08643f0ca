# SPDX-License-Identifier: Apache-2.0
"""Types of GGUF files, against llama_model_quantize and gguf-py.

make FOLDER...           a model in each: wide (rows of 256 elements and their multiples), tied, narrow (160), odd (48),
                         experts8 and experts5, fused, layers (24 of them)
check FOLDER...          of FOLDER.TYPE.gguf, which ckpt-merge wrote: the type of each tensor is that which
                         llama_model_quantize chooses, the decoded error no more than 1.01 of its own; f16, bf16, q8_0,
                         q4_0, q5_0 and q5_1 are gguf-py's to the bit; llama.cpp loads it
"""
import os
import sys

import numpy as np
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

from models import COMMON, EXPERTS, VOCAB, make_tokenizer, report

TYPES = {"f32": 0, "f16": 1, "bf16": 32, "q8_0": 7, "q4_0": 2, "q4_k_m": 15, "q6_k": 18}
SIZE = dict(COMMON, hidden_size=256, intermediate_size=512)
FOLDERS = {
    "wide": ("llama", dict(SIZE, num_hidden_layers=5)),
    "tied": ("qwen2", dict(SIZE, tie_word_embeddings=True)),
    "narrow": ("llama", dict(SIZE, hidden_size=160, intermediate_size=256)),
    "odd": ("llama", dict(SIZE, hidden_size=48, intermediate_size=96)),
    "experts8": ("mixtral", dict(EXPERTS, hidden_size=256, intermediate_size=256, num_local_experts=8,
                                 sliding_window=None)),
    "experts5": ("qwen3_moe", dict(EXPERTS, hidden_size=256, intermediate_size=256, num_experts=5, head_dim=64,
                                   moe_intermediate_size=256, norm_topk_prob=True)),
    "fused": ("gpt2", dict(vocab_size=VOCAB, n_embd=256, n_layer=4, n_head=4, n_positions=64, initializer_range=0.2)),
    "layers": ("llama", dict(SIZE, hidden_size=256, intermediate_size=256, num_hidden_layers=24)),
}
EXACT = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q5_0", "Q5_1")


def make(*folders):
    for folder in folders:
        torch.manual_seed(3)
        kind, keys = FOLDERS[folder]
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, bos_token_id=1, eos_token_id=2,
                                                                      pad_token_id=None, **keys))
        with torch.no_grad():  # rows with a constant, zeros and outliers, as trained weights have
            for parameter in model.parameters():
                if parameter.ndim == 2:
                    parameter[0] = 0
                    parameter[1] = 0.25
                    parameter[2, ::7] *= 20
                    parameter[3] += 1
        model.save_pretrained(folder)
        make_tokenizer("gpt2", folder)


def check_types(folder, name):
    from client import GGMLQuantizationType, gguf_quantize, quantize, read_tensors
    if name in ("f32", "f16", "bf16"):
        peers = None
    else:
        quantize(folder + ".f32.gguf", folder + ".peer.gguf", TYPES[name])
        peers = read_tensors(folder + ".peer.gguf")
    exact, ours = read_tensors(folder + ".f32.gguf"), read_tensors(folder + "." + name + ".gguf")
    assert list(exact) == list(ours)
    worst, kinds = 0, {}
    for tensor, (kind, raw, shape, values) in ours.items():
        kinds[kind] = kinds.get(kind, 0) + 1
        source = exact[tensor][3].reshape(values.shape)
        if kind in EXACT and kind != "F32":
            want = gguf_quantize(np.ascontiguousarray(source), GGMLQuantizationType[kind]).tobytes()
            assert raw == want, "%s is not gguf-py's %s" % (tensor, kind)
        if peers is None:
            continue
        assert kind == peers[tensor][0], "%s is %s, not %s" % (tensor, kind, peers[tensor][0])
        assert shape == peers[tensor][2], tensor
        mine, theirs = (np.sqrt(np.mean((x.reshape(source.shape).astype(np.float64) - source) ** 2))
                        for x in (values, peers[tensor][3]))
        worst = max(worst, mine / theirs if theirs else float(mine > 0))
    assert worst <= 1.01, "error %.3f of llama.cpp's" % worst
    return "%s: %s; error at most %.3f of llama.cpp's" % (name, ", ".join("%d %s" % (n, k) for k, n in kinds.items()), worst)


def check_loads(folder, name):
    from client import Model
    model = Model("%s.%s.gguf" % (folder, name))
    logits = model.logits([1, 5, 9, 200])
    model.close()
    assert np.isfinite(logits).all()
    return "llama.cpp loads " + name


def check(*folders):
    for folder in folders:
        for name in TYPES:
            report(folder, name, lambda: check_types(folder, name))
            report(folder, name, lambda: check_loads(folder, name))


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    {"list": lambda: print(*FOLDERS), "make": make, "check": check}[sys.argv[1]](*sys.argv[2:])
