# SPDX-License-Identifier: Apache-2.0
"""Chats from end to end, as transformers and torch have them.

make FOLDER            a small Llama with a trained tokenizer and a chat template, chats.jsonl, held-out.jsonl
check FOLDER METRICS   losses, gradient norms, counted tokens and held-out losses of the run are torch's
questions FOLDER       writes questions, answers (greedy) and talks.jsonl
compare FOLDER FILE    the completions of talks.jsonl in FILE are transformers'
"""
import json
import math
import random
import sys

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SEQ_LEN, ROWS, STEPS, RATE = 96, 12, 40, 3e-3
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = ("{% for message in messages %}<|im_start|>{{ message.role }}\n{% if message.role == 'assistant' %}"
            "{% generation %}{{ message.content }}<|im_end|>{% endgeneration %}{% else %}{{ message.content }}<|im_end|>"
            "{% endif %}{{ '\n' }}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
THINGS = {"apple": "red", "sky": "blue", "grass": "green", "snow": "white", "coal": "black", "sun": "yellow",
          "na\u00efve caf\u00e9": "br\u00fbl\u00e9", "\u96ea": "\u767d\u8272 \u2744\ufe0f", "rose": "pink \U0001f339"}


def chat(rng):
    messages = [{"role": "system", "content": "Answer briefly."}] if rng.random() < 0.3 else []
    for _ in range(rng.randint(1, 3)):
        thing = rng.choice(sorted(THINGS))
        messages += [{"role": "user", "content": "What is the colour of %s?" % thing},
                     {"role": "assistant", "content": "The colour of %s is %s." % (thing, THINGS[thing])}]
    return {"messages": messages}


def make(folder):
    rng = random.Random(3)
    chats = [chat(rng) for _ in range(900)]
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.train_from_iterator([m["content"] for c in chats for m in c["messages"]], trainers.BpeTrainer(
        vocab_size=400, special_tokens=[AddedToken(s, special=True, normalized=False) for s in SPECIAL],
        show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    torch.manual_seed(4)
    config = LlamaConfig(vocab_size=len(tokenizer), hidden_size=192, intermediate_size=512, num_hidden_layers=4,
                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
                         initializer_range=0.05, eos_token_id=tokenizer.eos_token_id, bos_token_id=None,
                         pad_token_id=tokenizer.pad_token_id)
    LlamaForCausalLM(config).save_pretrained(folder)
    for name, part in (("chats", chats[:860]), ("held-out", chats[860:])):
        with open(f"{folder}/{name}.jsonl", "w", encoding="utf-8") as f:
            for c in part:
                print(json.dumps(c, ensure_ascii=rng.random() < 0.5), file=f)


def documents(folder, name):
    """(inputs, label of each input) of every chat."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    found = []
    for line in open(f"{folder}/{name}.jsonl", encoding="utf-8"):
        row = tokenizer.apply_chat_template(json.loads(line)["messages"], tokenize=True, return_dict=True,
                                            return_assistant_tokens_mask=True)
        ids, mask = list(row["input_ids"]), row["assistant_masks"]
        labels = [token if counts else -100 for token, counts in zip(ids, mask)]
        while len(ids) > 1:  # a document that is longer than a row becomes rows and a rest
            found.append((ids[:-1][:SEQ_LEN], labels[1:][:SEQ_LEN]))
            ids, labels = ids[SEQ_LEN:], labels[SEQ_LEN:]
    return found


def packed(folder, name):
    rows, used = [[]], 0
    for document in documents(folder, name):
        if used + len(document[0]) > SEQ_LEN:
            rows, used = rows + [[]], 0
        rows[-1].append(document)
        used += len(document[0])
    return rows


def row_loss(model, row):
    inputs = [token for document in row for token in document[0]]
    labels = torch.tensor([label for document in row for label in document[1]])
    number = torch.tensor([i for i, document in enumerate(row) for _ in document[0]])
    positions = torch.tensor([t for document in row for t in range(len(document[0]))])
    seen = (number[:, None] == number[None, :]).tril()
    mask = torch.where(seen, 0.0, torch.finfo(torch.float32).min)[None, None]
    logits = model(torch.tensor([inputs]), attention_mask=mask, position_ids=positions[None]).logits[0]
    return torch.nn.functional.cross_entropy(logits, labels, ignore_index=-100, reduction="sum")


def learned(rows):
    return [label for row in rows for _, labels in row for label in labels if label != -100]


def near(what, got, want, bound):
    difference = abs(got - want) / abs(want)
    if difference > bound:
        raise SystemExit(f"{what}: {got:.9g}, torch {want:.9g}")
    return difference


def held_out(model, folder, line):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = packed(folder, "held-out")
    with torch.no_grad():
        total = sum(row_loss(model, row) for row in rows).item()
    special = set(tokenizer.all_special_ids)
    nbytes = sum(len(bytes_of(tokenizer, label)) for label in learned(rows) if label not in special)
    near("held-out loss", line["eval_loss"], total / len(learned(rows)), 1e-3)
    near("held-out bits per byte", line["eval_bits_per_byte"], total / nbytes / math.log(2), 1e-3)


def bytes_of(tokenizer, token):
    names = {name: byte for byte, name in byte_names().items()}
    return bytes(names[c] for c in tokenizer.convert_ids_to_tokens(token))


def byte_names():
    codes = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    names, extra = {b: chr(b) for b in codes}, 256
    for b in range(256):
        if b not in names:
            names[b], extra = chr(extra), extra + 1
    return names


def check(folder, metrics):
    lines = [json.loads(line) for line in open(metrics)]
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1)), [line["step"] for line in lines]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), eps=1e-8, weight_decay=0)
    rows = packed(folder, "chats")
    far = [0, 0]
    for step, line in enumerate(lines):
        batch = [rows[i % len(rows)] for i in range(step * ROWS, (step + 1) * ROWS)]
        count = len(learned(batch))
        assert line["counted_tokens"] == count, f"{line['counted_tokens']} tokens count, not {count}"
        optimizer.zero_grad()
        loss = sum(row_loss(model, row) for row in batch) / count
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        # Two runs in fp32 drift apart: what begins at 1e-7 grows with each step, on some processors to 0.4 % of the
        # last gradient norms.
        bound = 1e-5 if step < 5 else 2e-4
        norm_bound = 10 * bound if step < 20 else 1e-2
        far[0] = max(far[0], near(f"loss of step {step + 1}", line["loss"], loss.item(), bound))
        far[1] = max(far[1], near(f"gradient norm of step {step + 1}", line["grad_norm"], norm.item(), norm_bound))
    print(f"losses {lines[0]['loss']:.4f} to {lines[-1]['loss']:.4f}; largest differences {far[0]:.2g}, norms {far[1]:.2g}")
    held_out(model, folder, lines[-1])


def answer(model, tokenizer, messages):
    ids = tokenizer.apply_chat_template(messages, tokenize=True, add_generation_prompt=True, return_dict=True)["input_ids"]
    out = model.generate(torch.tensor([ids]), max_new_tokens=40, do_sample=False)[0][len(ids):]
    return tokenizer.decode(out, skip_special_tokens=True)


def open_model(folder):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model, AutoTokenizer.from_pretrained(folder)


def questions(folder):
    model, tokenizer = open_model(folder)
    asked = ["What is the colour of %s?" % thing for thing in sorted(THINGS)] + ["Hello!", "the colour of"]
    with open("questions", "w") as q, open("answers", "w") as a, open("talks.jsonl", "w") as t:
        for question in asked:
            reply = answer(model, tokenizer, [{"role": "user", "content": question}])
            if "\n" not in reply and reply == reply.strip():
                print(question, file=q)
                print(reply, file=a)
        for i in range(6):
            print(json.dumps({"messages": chat(random.Random(i))["messages"][:-1]}), file=t)


def compare(folder, file):
    model, tokenizer = open_model(folder)
    got = [json.loads(line) for line in open(file)]
    talks = [json.loads(line) for line in open("talks.jsonl")]
    assert len(got) == len(talks)
    for line, talk in zip(got, talks):
        want = answer(model, tokenizer, talk["messages"])
        assert line["completion"] == want, (line["completion"], want)


if __name__ == "__main__":
    {"make": make, "check": check, "questions": questions, "compare": compare}[sys.argv[1]](*sys.argv[2:])
