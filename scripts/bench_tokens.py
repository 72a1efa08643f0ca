#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The speed of our encoder on one core against tokenizers' encode_batch (and tiktoken's way of tekken.json) in the
same run: on prose and on code, with real vocabularies. Then the learning of a vocabulary against BpeTrainer.

    bench_tokens.py PROGRAM TRAINER VOCABULARIES SCRATCH [ROUNDS]

PROGRAM is tests/text/bench_tokenizer, TRAINER tests/interop/test_train_tokenizer, VOCABULARIES the folder of
scripts/fetch_vocab.py. Prints two tables."""
import glob
import os
import struct
import subprocess
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(TOP, "tests", "interop"))

import mistral_common  # noqa: E402
from mistral_common.tokens.tokenizers.tekken import Tekkenizer  # noqa: E402
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # noqa: E402
from vocabularies import gguf_bpe, gguf_spm, read_gguf  # noqa: E402

PROGRAM, TRAINER, VOCAB, SCRATCH = sys.argv[1:5]
ROUNDS = int(sys.argv[5]) if len(sys.argv) > 5 else 5
TRAINED_SIZE = 32000
DOCUMENT_NBYTES = 2000


def prose():
    try:
        return subprocess.run(["bible", "gen1:1-rev22:21"], capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        sys.exit("bench_tokens.py: the prose is the program bible's (Debian: bible-kjv)")


def code():
    paths = sorted(glob.glob(os.path.join(TOP, "**", "*.[ch]"), recursive=True))
    return b"".join(open(path, "rb").read() for path in paths if "/build/" not in path)


def documents(data):
    at, out = 0, []
    while at < len(data):
        feed = data.find(b"\n", at + DOCUMENT_NBYTES) if len(data) - at > DOCUMENT_NBYTES else -1
        end = feed + 1 if feed >= 0 else len(data)
        out.append(data[at:end].decode())
        at = end
    return out


def vocabularies():
    """Name, file and the original's function from texts to the number of their ids."""
    for name in ("gpt-2", "llama-bpe", "qwen2", "llama-spm"):
        info = read_gguf(os.path.join(VOCAB, "models", "ggml-vocab-%s.gguf" % name))
        path = os.path.join(SCRATCH, name + ".json")
        (gguf_spm(info) if name == "llama-spm" else gguf_bpe(info, name)).save(path)
        tokenizer = Tokenizer.from_file(path)
        yield name, path, lambda texts, t=tokenizer: sum(
            len(e) for e in t.encode_batch(texts, add_special_tokens=False))
    path = sorted(glob.glob(os.path.join(os.path.dirname(mistral_common.__file__), "data", "tekken*.json")))[0]
    tekken = Tekkenizer.from_file(path)
    yield "tekken (tiktoken)", path, lambda texts: sum(len(i) for i in tekken._model.encode_ordinary_batch(texts, num_threads=1))


def ours(path, text_path, rounds):
    run = subprocess.run([PROGRAM, path, text_path, str(rounds)], capture_output=True, text=True)
    if run.returncode:
        sys.exit(run.stderr)
    speed, _, nids = run.stdout.split()
    return float(speed), int(nids)


def theirs(encode, texts):
    began = time.perf_counter()
    nids = encode(texts)
    return time.perf_counter() - began, nids


def train_ours(texts):
    """Seconds, and the file that is written."""
    folder = os.path.join(SCRATCH, "trained")
    run = subprocess.run([TRAINER, folder, str(TRAINED_SIZE), "0", "", "0", "<|endoftext|>"], capture_output=True,
                         input=b"".join(struct.pack("<I", len(t.encode())) + t.encode() for t in texts))
    if run.returncode:
        sys.exit(run.stderr.decode())
    with open(os.path.join(folder, "tokenizer.json"), encoding="utf-8") as f:
        return sum(map(float, run.stderr.split())), f.read()


def train_theirs(texts):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=TRAINED_SIZE, special_tokens=["<|endoftext|>"], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    began = time.perf_counter()
    tokenizer.train_from_iterator(texts, trainer)
    return time.perf_counter() - began, tokenizer.to_str(pretty=True)


def train(data):
    print("\n%-20s %-6s %9s %9s %8s" % ("learning %d tokens" % TRAINED_SIZE, "text", "seconds", "original", "ratio"))
    for kind, text in data.items():
        best = [float("inf"), float("inf")]
        for _ in range(ROUNDS):
            runs = train_ours(documents(text)), train_theirs(documents(text))
            if runs[0][1] != runs[1][1]:
                sys.exit("%s: the vocabularies differ" % kind)
            best = [min(best[0], runs[0][0]), min(best[1], runs[1][0])]
        print("%-20s %-6s %9.2f %9.2f %8.2f" % ("", kind, *best, best[1] / best[0]), flush=True)


def main():
    print("%-20s %-6s %9s %9s %8s" % ("vocabulary", "text", "MB/s", "original", "ratio"))
    data = {"prose": prose(), "code": code()}
    for name, text in data.items():
        with open(os.path.join(SCRATCH, name), "wb") as out:
            out.write(text)
    for name, path, encode in vocabularies():
        for kind, text in data.items():
            texts, speeds = documents(text), [0, 0]
            for _ in range(ROUNDS):  # in turn, so that both see the same machine
                seconds, want = theirs(encode, texts)
                speed, nids = ours(path, os.path.join(SCRATCH, kind), 3)
                speeds = [max(speeds[0], speed), max(speeds[1], len(text) / 1e6 / seconds)]
            if nids != want:
                sys.exit("%s, %s: %d ids, not %d" % (name, kind, nids, want))
            print("%-20s %-6s %9.1f %9.1f %8.2f" % (name, kind, *speeds, speeds[0] / speeds[1]), flush=True)
    train(data)


main()
