#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Real vocabularies of llama.cpp's files (scripts/fetch_vocab.py) as tokenizers of the package `tokenizers`, with the
pre-tokenizers of the models that they are from."""
import struct

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

def read_gguf(path):
    data = open(path, "rb").read()
    at = 0

    def take(fmt):
        nonlocal at
        value = struct.unpack_from("<" + fmt, data, at)
        at += struct.calcsize("<" + fmt)
        return value[0]

    def text():
        nonlocal at
        n = take("Q")
        at += n
        return data[at - n:at].decode("utf-8", "surrogateescape")

    def value(kind):
        if kind == 8:
            return text()
        if kind == 9:
            inner, n = take("I"), take("Q")
            return [value(inner) for _ in range(n)]
        return take({0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}[kind])

    assert take("I") == 0x46554747
    take("I"), take("Q")
    return {text(): value(take("I")) for _ in range(take("Q"))}


GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
          r"\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
CL100K = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|"
          r"\s+")
UPPER, LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
O200K = (r"[^\r\n\p{L}\p{N}]?[" + UPPER + "]*[" + LOWER + r"]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[" +
         UPPER + "]+[" + LOWER + r"]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|"
         r"\s+(?!\S)|\s+")
KIMI = (r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
        r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
        r"\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK_LLM = [r"[\r\n]", r"\s?[A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293"
                r"\u0295-\u02af\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1"
                r"\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5]+",
                r"\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+", r"\s+$", r"[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"]


def split(pattern):
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def byte_level(*before, use_regex=False):
    return pre_tokenizers.Sequence(list(before) + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)])


PRE = {
    "gpt-2": byte_level(use_regex=True), "llama-bpe": byte_level(split(LLAMA3)), "qwen2": byte_level(split(QWEN2)),
    "qwen35": byte_level(split(QWEN2)),
    "starcoder": byte_level(pre_tokenizers.Digits(individual_digits=True), use_regex=True),
    "refact": byte_level(pre_tokenizers.Digits(individual_digits=True), use_regex=True),
    "command-r": byte_level(pre_tokenizers.Digits(individual_digits=True), use_regex=True),
    "falcon": byte_level(pre_tokenizers.Punctuation("contiguous"), pre_tokenizers.Digits(individual_digits=False),
                         pre_tokenizers.Split(Regex(r"[0-9][0-9][0-9]"), "isolated"), use_regex=True),
    "deepseek-llm": byte_level(*map(split, DEEPSEEK_LLM), pre_tokenizers.Digits(individual_digits=True)),
    "deepseek-coder": byte_level(*map(split, [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"]),
                                 pre_tokenizers.Digits(individual_digits=True)),
    "mpt": byte_level(use_regex=True), "gpt-neox": byte_level(use_regex=True),
}
NORMALIZER = {"qwen2": normalizers.NFC(), "qwen35": normalizers.NFC(), "mpt": normalizers.NFC(), "gpt-neox": normalizers.NFC()}


def add_gguf_tokens(tokenizer, tokens, types):
    special = [AddedToken(t, special=True, normalized=False) for t, kind in zip(tokens, types) if kind == 3]
    plain = [AddedToken(t, special=False, normalized=False) for t, kind in zip(tokens, types) if kind == 4]
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens(plain)


def gguf_bpe(info, pre):
    tokens = info["tokenizer.ggml.tokens"]
    merges = [tuple(m.split(" ")) for m in info["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, merges, ignore_merges=pre == "llama-bpe"))
    if pre in NORMALIZER:
        tokenizer.normalizer = NORMALIZER[pre]
    tokenizer.pre_tokenizer = PRE[pre]
    tokenizer.decoder = decoders.ByteLevel()
    add_gguf_tokens(tokenizer, tokens, info["tokenizer.ggml.token_type"])
    return tokenizer


def gguf_spm(info):
    """Llama's sentencepiece vocabulary as transformers converts it: merges in the order of scores."""
    tokens, scores = info["tokenizer.ggml.tokens"], info["tokenizer.ggml.scores"]
    types = info["tokenizer.ggml.token_type"]
    vocab = {t: i for i, t in enumerate(tokens)}
    merges = []
    for i, token in enumerate(tokens):
        if types[i] != 1:
            continue
        local = [(token[:k], token[k:], i) for k in range(1, len(token)) if token[:k] in vocab and token[k:] in vocab]
        merges += sorted(local, key=lambda m: (vocab[m[0]], vocab[m[1]]))
    merges.sort(key=lambda m: -scores[m[2]])
    tokenizer = Tokenizer(models.BPE(vocab, [(a, b) for a, b, _ in merges], unk_token="<unk>", fuse_unk=True,
                                     byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(" ", 1, 0)])
    add_gguf_tokens(tokenizer, tokens, types)
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 1)])
    return tokenizer
