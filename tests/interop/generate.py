# SPDX-License-Identifier: Apache-2.0
"""What generate.sh asks of Python; a failed assertion is the answer no."""
import json
import sys

import torch
from transformers import (AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig,
                          LlamaForCausalLM)
from transformers.generation.logits_process import (
    LogitsProcessorList, MinPLogitsWarper, RepetitionPenaltyLogitsProcessor, TemperatureLogitsWarper,
    TopKLogitsWarper, TopPLogitsWarper)

VOCAB = 5000


def make(kind, path, dtype="float32"):
    torch.manual_seed(5)
    if kind == "llama":
        config = LlamaConfig(vocab_size=VOCAB, hidden_size=64, intermediate_size=160,
                             num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
                             max_position_embeddings=256, tie_word_embeddings=False,
                             initializer_range=0.3, bos_token_id=1, eos_token_id=2)
        model = LlamaForCausalLM(config)
    else:
        config = GPT2Config(vocab_size=VOCAB, n_embd=64, n_layer=3, n_head=4, n_positions=256,
                            initializer_range=0.3, bos_token_id=1, eos_token_id=2)
        model = GPT2LMHeadModel(config)
    model.to(getattr(torch, dtype)).save_pretrained(path, max_shard_size="1MB")


def load(path):
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")


def greedy(path, prompt, ours, *settings):
    """The ids that transformers generates, with the folder's own generation_config.json."""
    ids = torch.tensor([[int(t) for t in prompt.split(",")]])
    more = {k: json.loads(v) for k, v in (s.split("=") for s in settings)}
    model = load(path)
    out = model.generate(ids, attention_mask=torch.ones_like(ids), **more)[0, ids.shape[1]:].tolist()
    ends = model.generation_config.eos_token_id
    ends = ends if isinstance(ends, list) else [ends]
    if out and out[-1] in ends:
        out.pop()
    got = [int(t) for t in open(ours).read().strip().split(",") if t]
    print(f"transformers {out}\nours         {got}")
    assert got == out, "they differ"


def batch(path, ours):
    """Every line of a batch is what transformers generates of its prompt alone."""
    model = load(path)
    rows = [json.loads(line) for line in open(ours)]
    assert len(rows) == 11
    for row in rows:
        ids = torch.tensor([row["tokens"]])
        out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False,
                             max_new_tokens=row.get("max_tokens", 40))[0, ids.shape[1]:].tolist()
        assert row["completion_tokens"] == out, f"{row}: {out}"
    print(f"{len(rows)} lines, {sum(r['ntokens'] for r in rows)} tokens")


def prompts(path):
    torch.manual_seed(11)
    with open(path, "w") as f:
        for i in range(11):
            row = {"tokens": torch.randint(3, VOCAB, (1 + 7 * i % 23,)).tolist()}
            row.update({"max_tokens": 5 + i} if i % 3 == 0 else {})
            f.write(json.dumps(row) + "\n")


def short(path, prompt, ours):
    """How far greedy text with keys and values in bf16 is that of a model that is bf16 altogether."""
    ids = torch.tensor([[int(t) for t in prompt.split(",")]])
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16, attn_implementation="eager")
    out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=60,
                         output_logits=True, return_dict_in_generate=True)
    want = out.sequences[0, ids.shape[1]:].tolist()
    got = [int(t) for t in open(ours).read().strip().split(",")]
    same = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), len(want))
    print(f"{same} of {len(want)} tokens are the same")
    if same < len(want):  # where they part, the two tokens are a rounding of the logits apart
        two = out.logits[same][0].float()
        gap = (two[want[same]] - two[got[same]]).item()
        print(f"then logits that are {gap:.3g} apart, of {two.abs().max():.3g}")
        assert gap <= 0.05 * two.abs().max().item()


def spell(kind, path):
    """A tokenizer of the kind of GPT-2's, or of Llama 2's, in a model's folder."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast
    words = [f"{a}{b}{c}" for a in "bdfgklmnprst" for b in "aeiou" for c in ("", "n", "r", "st", "é", "日")]
    text = [" ".join(words[(i * 7 + j * j * 11) % len(words)] for j in range(12)) for i in range(600)]
    special = ["<unk>", "<s>", "</s>"]
    if kind == "bytes":
        t = Tokenizer(models.BPE())
        t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        t.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    else:
        t = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
        special += [f"<0x{i:02X}>" for i in range(256)]
        t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(),
                                       decoders.Fuse(), decoders.Strip(" ", 1, 0)])
        alphabet = []
    t.train_from_iterator(text, trainers.BpeTrainer(vocab_size=VOCAB, special_tokens=special,
                                                    initial_alphabet=alphabet, show_progress=False))
    t.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    PreTrainedTokenizerFast(tokenizer_object=t, bos_token="<s>", eos_token="</s>",
                            unk_token="<unk>").save_pretrained(path)
    print(f"{t.get_vocab_size()} tokens")


def text(path, prompt, ours):
    """A prompt's text and what follows it, as transformers tokenizes, generates and decodes."""
    from transformers import AutoTokenizer
    t, model = AutoTokenizer.from_pretrained(path), load(path)
    ids = t(prompt, return_tensors="pt").input_ids
    out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=40)[0].tolist()
    whole = t.decode(out, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    begin = t.decode(ids[0], skip_special_tokens=True, clean_up_tokenization_spaces=False)
    got = open(ours, "rb").read()
    want = (prompt + whole[len(begin):] + "\n").encode()
    assert whole.startswith(begin) and len(want) > len(prompt) + 20
    assert got == want, f"{got}\n{want}"
    print(f"{len(out) - ids.shape[1]} tokens, {len(got)} bytes")


def distribution(prompt, logits, ours, settings):
    s = json.loads(settings)
    ids = torch.tensor([[int(t) for t in prompt.split(",")]])
    with open(logits) as f:
        scores = torch.tensor([[float(x) for x in f.readlines()[-1].split()]])
    steps = LogitsProcessorList()
    if "repetition_penalty" in s:
        steps.append(RepetitionPenaltyLogitsProcessor(s["repetition_penalty"]))
    if "temperature" in s:
        steps.append(TemperatureLogitsWarper(s["temperature"]))
    if "top_k" in s:
        steps.append(TopKLogitsWarper(s["top_k"]))
    if "top_p" in s:
        steps.append(TopPLogitsWarper(s["top_p"]))
    if "min_p" in s:
        steps.append(MinPLogitsWarper(s["min_p"]))
    scores = steps(ids, scores)
    kept = set(torch.nonzero(torch.isfinite(scores[0]))[:, 0].tolist())
    want = torch.softmax(scores[0].double(), -1)
    got = {}
    for line in open(ours):
        token, p = line.split()
        got[int(token)] = float(p)
    assert set(got) == kept, f"{len(got)} tokens kept for {len(kept)}: {sorted(set(got) ^ kept)[:9]}"
    worst = max(abs(want[t].item() - p) for t, p in got.items())
    print(f"{settings.strip()}: {len(kept)} tokens kept, probabilities within {worst:.1e}")
    # A logit of s that was rounded three times is off by 3 s 2^-24, and its probability by as much.
    largest = scores[0][torch.isfinite(scores[0])].abs().max().item()
    assert worst < 1e-7 + 3 * largest * 2**-24


def distributions(prompt, logits, number):
    """What transformers' processors make of the logits that we printed."""
    for i in range(1, int(number) + 1):
        distribution(prompt, logits, f"ours.{i}", open(f"settings.{i}").read())


if __name__ == "__main__":
    dict(make=make, greedy=greedy, distributions=distributions, batch=batch,
         prompts=prompts, short=short, spell=spell, text=text)[sys.argv[1]](*sys.argv[2:])
