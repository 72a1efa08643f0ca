# SPDX-License-Identifier: Apache-2.0
"""Makes the small tokenizers of this folder, with Hugging Face's tokenizers, of the tree's own texts.

    python3 make.py      in this folder
"""

import glob
import json

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers import processors, trainers

TEXTS = sorted(glob.glob("../../../docs/*.md")) + sorted(glob.glob("../../../models/data/*.c"))


def save(tokenizer, name):
    with open(name, "w", encoding="utf-8") as f:
        json.dump(json.loads(tokenizer.to_str()), f, ensure_ascii=False, separators=(",", ":"))
        f.write("\n")


def byte_level():
    """As GPT-2's, with runs of spaces as tokens of their own, and a special token around texts."""
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    t.train(TEXTS, trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet, show_progress=False))
    t.add_special_tokens(["<|end|>", "<|begin|>"])
    t.add_tokens([AddedToken("    ", normalized=False), AddedToken("   ", normalized=False)])
    begin = ("<|begin|>", t.token_to_id("<|begin|>"))
    t.post_processor = processors.TemplateProcessing(single="<|begin|> $A", special_tokens=[begin])
    return t


def unigram():
    """As T5's: Metaspace, and a special token behind texts."""
    t = Tokenizer(models.Unigram())
    t.normalizer = normalizers.NFKC()
    t.pre_tokenizer = pre_tokenizers.Metaspace()
    t.decoder = decoders.Metaspace()
    t.train(TEXTS, trainers.UnigramTrainer(vocab_size=400, special_tokens=["<unk>", "</s>"],
                                           unk_token="<unk>", show_progress=False))
    end = ("</s>", t.token_to_id("</s>"))
    t.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[end])
    return t


def sentence():
    """As Llama 2's: no pre-tokenizer, so that a text is one word."""
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.pre_tokenizer = pre_tokenizers.Metaspace()
    names = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    t.train(TEXTS, trainers.BpeTrainer(vocab_size=700, special_tokens=names, show_progress=False))
    root = json.loads(t.to_str())
    root["added_tokens"] = root["added_tokens"][:3]
    root["pre_tokenizer"] = None
    root["normalizer"] = {"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "\u2581"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]}
    root["decoder"] = {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
        {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    t = Tokenizer.from_str(json.dumps(root))
    begin = ("<s>", 1)
    t.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[begin])
    return t


save(byte_level(), "bytes.json")
save(unigram(), "unigram.json")
save(sentence(), "sentence.json")
