#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes cases.json next to it: small tokenizer files, and what tokenizers, sentencepiece and mistral-common make of
texts with them. Run it with a Python that has these, after a case was added."""
import base64
import io
import json
import os
import tempfile

import sentencepiece
from mistral_common.tokens.tokenizers.tekken import Tekkenizer
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

HERE = os.path.dirname(os.path.abspath(__file__))
MARK = "\u2581"
CORPUS = ["the cat and the other cat sat on the mat", "then they thanked the man at the inn", "in 2024 and 2025, 1234 men",
          "the caf\u00e9 na\u00efve", "a  b   c", "int main(void) { return the; }"] * 4
TEXTS = ["", " ", "the cat", "  the  man ", "The cat's mat, 2024!\n\n\tthen\r\n", "caf\u00e9 cafe\u0301 \u00c5\u212b \ufb01", "\u4e2d\u6587 \u65e5\u672c",
         "\U0001f469\u200d\U0001f4bb \U0001f44d\U0001f3fd", "a\u00a0b\u3000c\u2028", "x\x00y", "<s>the</s> word words  <m>  the", MARK + "the",
         "\u0130I\u03a3\u03c2 \u00df", "1234567 12a3", "thethethe" * 9, "\ufffd\u200b\ufeff", "-a-the- \u00bd\u0663"]
SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def train(model, trainer, pre):
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre
    tokenizer.train_from_iterator(CORPUS, trainer)
    return json.loads(tokenizer.to_str())["model"]


def bases():
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    fallback = ["<0x%02X>" % i for i in range(256)]
    by_bytes = train(models.BPE(), trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False),
                     pre_tokenizers.ByteLevel(add_prefix_space=False))
    chars = train(models.BPE(unk_token="<unk>"),
                  trainers.BpeTrainer(vocab_size=330, special_tokens=["<unk>"] + fallback, show_progress=False),
                  pre_tokenizers.Metaspace())
    unigram = train(models.Unigram(), trainers.UnigramTrainer(vocab_size=60, unk_token="<unk>", special_tokens=["<unk>"],
                                                              show_progress=False), pre_tokenizers.Metaspace())
    unigram["vocab"] += [[b, 0.0] for b in fallback]
    return {"bytes": by_bytes, "chars": chars, "unigram": unigram}


def sequence(kind, key, *parts):
    return {"type": kind, key: list(parts)}


def norm(*parts):
    return sequence("Sequence", "normalizers", *parts)


def pre(*parts):
    return sequence("Sequence", "pretokenizers", *parts)


def split(pattern, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}


def byte_level(**options):
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True, **options}


def metaspace(scheme, cut=True):
    return {"type": "Metaspace", "replacement": MARK, "prepend_scheme": scheme, "split": cut}


def token(content, token_id, special=False, **flags):
    return {"id": token_id, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": not special, "special": special, **flags}


def template(before, after):
    def piece(name):
        return {"SpecialToken": {"id": name, "type_id": 0}}

    single = [piece(t["content"]) for t in before] + [{"Sequence": {"id": "A", "type_id": 0}}] + \
        [piece(t["content"]) for t in after]
    return {"type": "TemplateProcessing", "single": single,
            "pair": single + [{"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {t["content"]: {"id": t["content"], "ids": [t["id"]], "tokens": [t["content"]]}
                               for t in before + after}}


def replace(old, new):
    return {"type": "Replace", "pattern": old, "content": new}


FALLBACK = [replace({"String": MARK}, " "), {"type": "ByteFallback"}, {"type": "Fuse"}]
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
LLAMA = {"normalizer": norm({"type": "Prepend", "prepend": MARK}, replace({"String": " "}, MARK)),
         "decoder": sequence("Sequence", "decoders", *FALLBACK, STRIP)}


def cases(base):
    """Name, model, changes of the model, other parts of the file."""
    size = len(base["bytes"]["vocab"])
    bos, eos = token("<s>", size, True), token("</s>", size + 1, True)
    yield "byte-level BPE", "bytes", {}, {"pre_tokenizer": byte_level()}
    yield "a prefix", "bytes", {}, {"pre_tokenizer": byte_level(add_prefix_space=True), "post_processor": byte_level()}
    yield "a pattern", "bytes", {}, {"pre_tokenizer": pre(split({"Regex": SPLIT}), byte_level(use_regex=False))}
    yield "ignore_merges", "bytes", {"ignore_merges": True, "merges": base["bytes"]["merges"][10:]}, \
        {"pre_tokenizer": byte_level()}
    yield "merges as texts", "bytes", {"merges": [" ".join(m) for m in base["bytes"]["merges"]]}, \
        {"pre_tokenizer": byte_level()}
    for kind in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase"):
        yield kind, "bytes", {}, {"normalizer": {"type": kind}, "pre_tokenizer": byte_level()}
    yield "StripAccents, Strip", "bytes", {}, {
        "normalizer": norm({"type": "NFD"}, {"type": "StripAccents"},
                           {"type": "Strip", "strip_left": True, "strip_right": True}), "pre_tokenizer": byte_level()}
    yield "Replace", "bytes", {}, {"normalizer": replace({"Regex": r"\s+"}, "_"), "pre_tokenizer": byte_level()}
    for behavior in ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
        yield "Split " + behavior, "bytes", {}, {
            "pre_tokenizer": pre(split({"Regex": r"[aeo ]"}, behavior, behavior == "Isolated"), byte_level(use_regex=False))}
    for step in ({"type": "Digits", "individual_digits": True}, {"type": "Digits", "individual_digits": False},
                 {"type": "Punctuation", "behavior": "Isolated"}, {"type": "Whitespace"}, {"type": "WhitespaceSplit"},
                 {"type": "CharDelimiterSplit", "delimiter": "-"}, split({"String": "th"}, "MergedWithNext")):
        yield step["type"] + (" each" if step.get("individual_digits") else ""), "bytes", {}, {
            "pre_tokenizer": pre(step, byte_level())}
    yield "added tokens", "bytes", {}, {
        "added_tokens": [bos, eos, token("word", size + 2, single_word=True), token("<m>", size + 3, lstrip=True, rstrip=True),
                         token("CAT", size + 4), token("\u4e2d", size + 5, normalized=False)],
        "normalizer": {"type": "Lowercase"}, "pre_tokenizer": byte_level(), "post_processor": template([bos], [eos, eos])}
    yield "processors in a sequence", "bytes", {}, {
        "added_tokens": [bos, eos], "pre_tokenizer": byte_level(),
        "post_processor": sequence("Sequence", "processors", byte_level(trim_offsets=False), template([bos], []))}
    yield "Roberta", "bytes", {}, {
        "added_tokens": [bos, eos], "pre_tokenizer": byte_level(),
        "post_processor": {"type": "RobertaProcessing", "sep": ["</s>", eos["id"]], "cls": ["<s>", bos["id"]],
                           "trim_offsets": True, "add_prefix_space": False}}
    yield "Llama", "chars", {"byte_fallback": True, "fuse_unk": True}, LLAMA
    yield "Gemma", "chars", {"byte_fallback": True}, {
        "normalizer": replace({"String": " "}, MARK), "pre_tokenizer": split({"String": " "}, "MergedWithPrevious"),
        "decoder": sequence("Sequence", "decoders", *FALLBACK)}
    yield "unknown characters", "chars", {}, {**LLAMA, "decoder": None}
    yield "unknown characters fused", "chars", {"fuse_unk": True}, {"pre_tokenizer": metaspace("always")}
    yield "characters left out", "chars", {"unk_token": None}, {"pre_tokenizer": metaspace("never")}
    for scheme, cut in (("always", True), ("first", True), ("never", False)):
        yield "Metaspace " + scheme, "chars", {"byte_fallback": True}, {
            "pre_tokenizer": metaspace(scheme, cut), "decoder": metaspace(scheme)}
        yield "Unigram " + scheme, "unigram", {"byte_fallback": cut}, {
            "pre_tokenizer": metaspace(scheme), "decoder": sequence("Sequence", "decoders", *FALLBACK, STRIP) if cut
            else metaspace(scheme)}


def answers(tokenizer):
    rows = []
    for text in TEXTS:
        ids, special = (tokenizer.encode(text, add_special_tokens=s).ids for s in (False, True))
        row = {"text": text, "ids": ids, "special": special, "back": tokenizer.decode(special, skip_special_tokens=False),
               "skipped": tokenizer.decode(special, skip_special_tokens=True)}
        for key, other in (("special", "ids"), ("skipped", "text"), ("back", "text")):  # what is missing is the other
            if row[key] == row[other]:
                del row[key]
        rows.append(row)
    return rows


def hugging_face():
    base = bases()
    out = []
    for name, kind, model, parts in cases(base):
        file = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
                "pre_tokenizer": None, "post_processor": None,
                "decoder": byte_level() if kind == "bytes" else None, "model": {**base[kind], **model}, **parts}
        rows = answers(Tokenizer.from_str(json.dumps(file)))
        file["model"] = model
        out.append({"name": name, "model": kind, "file": file, "rows": rows})
    return base, out


def sentence_piece(kind, **options):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS), model_writer=model, model_type=kind, vocab_size=330, byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, hard_vocab_limit=False, **options)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    rows = []
    for text in TEXTS:
        if text and "\x00" not in text:
            ids = processor.encode(text)
            rows.append({"text": text, "ids": ids, "skipped": processor.decode(ids), "spm": True})
    return {"name": "SentencePiece " + kind, "base64": base64.b64encode(model.getvalue()).decode(), "rows": rows}


def tekken():
    merged = [b"th", b"the", b" the", b"an", b"at", b"in", b" c", b"\xc3\xa9", b"12", b"  "]
    vocab = [{"rank": i, "token_bytes": base64.b64encode(b).decode(), "token_str": None}
             for i, b in enumerate([bytes([i]) for i in range(256)] + merged)]
    file = {"config": {"pattern": SPLIT.replace("(?i:'s|'t|'re|'ve|'m|'ll|'d)|", ""), "num_vocab_tokens": len(vocab),
                       "default_vocab_size": len(vocab) + 1000, "default_num_special_tokens": 1000, "version": "v3"},
            "vocab": vocab}
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "tekken.json")
        with open(path, "w") as out:
            json.dump(file, out)
        original = Tekkenizer.from_file(path)
    rows = []
    for text in TEXTS:
        ids = original.encode(text, False, False)
        rows.append({"text": text, "ids": ids, "special": original.encode(text, True, False),
                     "skipped": original.decode(ids), "spm": True})
    return {"name": "tekken.json", "file": file, "rows": rows}


def main():
    base, files = hugging_face()
    out = {"models": base, "files": files + [tekken(), sentence_piece("bpe"), sentence_piece("unigram")]}
    with open(os.path.join(HERE, "cases.json"), "w") as file:
        file.write("{\n\"models\": " + json.dumps(out["models"]) + ",\n\"files\": [\n")
        file.write(",\n".join(json.dumps(f) for f in out["files"]) + "\n]}\n")


main()
