# SPDX-License-Identifier: Apache-2.0
"""Real vocabularies, which llama.cpp publishes for its own tests, there and back.

make NAME...    a model in folder NAME with such a vocabulary, as tokenizer.json
check NAME...   of NAME.gguf, which ckpt-merge wrote: tokens, merges and the pre-tokenizer are those of llama.cpp's file,
                and the ids of its texts those that it publishes
"""
import glob
import json
import os
import sys

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from models import COMMON, report

sys.path.append(os.path.join(os.path.dirname(__file__), "../interop"))
from vocabularies import gguf_bpe, read_gguf  # noqa: E402

FOLDER = os.path.join(os.path.dirname(os.environ["LLAMA_CONVERTER"]), "models", "ggml-vocab-%s.gguf")
SAME = {"refact": "smollm", "starcoder": "smollm"}  # other names of the same pre-tokenizer


def make(*names):
    for name in names:
        info = read_gguf(FOLDER % name)
        keys = dict(COMMON, vocab_size=len(info["tokenizer.ggml.tokens"]), hidden_size=32, num_hidden_layers=1)
        torch.manual_seed(1)
        AutoModelForCausalLM.from_config(AutoConfig.for_model("qwen2", **keys)).save_pretrained(name)
        gguf_bpe(info, name).save(os.path.join(name, "tokenizer.json"))
        with open(os.path.join(name, "tokenizer_config.json"), "w") as f:
            json.dump(dict(tokenizer_class="PreTrainedTokenizerFast"), f)


def check_file(name):
    from client import read_keys
    ours, theirs = read_keys(name + ".gguf"), read_keys(FOLDER % name)
    for key in ("tokenizer.ggml.model", "tokenizer.ggml.pre", "tokenizer.ggml.merges", "tokenizer.ggml.token_type",
                "tokenizer.ggml.tokens"):
        want = theirs[key]
        want = SAME.get(want, want) if key == "tokenizer.ggml.pre" else want
        if ours[key] != want and isinstance(want, list):
            assert len(ours[key]) == len(want), "%s: %d instead of %d" % (key, len(ours[key]), len(want))
            at = next(i for i, (a, b) in enumerate(zip(ours[key], want)) if a != b)
            raise AssertionError("%s: %d: %r instead of %r" % (key, at, ours[key][at], want[at]))
        assert ours[key] == want, "%s: %s instead of %s" % (key, ours[key], want)
    return "%d tokens and %d merges are llama.cpp's" % (len(theirs["tokenizer.ggml.tokens"]),
                                                     len(theirs["tokenizer.ggml.merges"]))


def check_texts(name):
    from client import Model
    with open(FOLDER % name + ".inp", encoding="utf-8", newline="") as f:
        texts = f.read().split("\n__ggml_vocab_test__\n")
    with open(FOLDER % name + ".out") as f:
        want = [[int(i) for i in line.split()] for line in f]
    model = Model(name + ".gguf")
    wrong = [text for text, ids in zip(texts, want) if model.tokenize(text, special=False) != ids]
    model.close()
    assert not wrong and len(want) > 40, wrong
    return "the ids of %d texts are those that llama.cpp publishes" % len(want)


def check(*names):
    for name in names:
        report(name, "file", lambda: check_file(name))
        report(name, "texts", lambda: check_texts(name))


if __name__ == "__main__":
    {"make": make, "check": check}[sys.argv[1]](*sys.argv[2:])
