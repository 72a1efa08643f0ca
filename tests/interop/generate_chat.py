# SPDX-License-Identifier: Apache-2.0
"""What generate_chat.sh asks of Python: folders as transformers makes them, with the answers that it
generates (make), and whether ours are the same (check)."""
import json
import sys

import torch
from tokenizers import (Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors,
                        trainers)
from transformers import (AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel, LlamaConfig,
                          LlamaForCausalLM, PreTrainedTokenizerFast)

VOCAB, MOST = 1200, 24
USER = ["ban der 日 gost é!", "  lin? bust\tmanst 日日", "tér: 12 gun (dof)  "]
SYSTEM = "Answer as a bandun: bur, ber, bor."

CHATML = """
{%- if messages[0].role != 'system' %}{{- '<|im_start|>system\\nTalk.<|im_end|>\\n' }}{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and not enable_thinking %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
"""
HEADERS = """
{{- bos_token }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""
INST = """
{%- set head = namespace(text='') %}
{%- if messages[0]['role'] == 'system' %}
    {%- set head.text = '<<SYS>>\\n' + messages[0]['content'] + '\\n<</SYS>>\\n\\n' %}
    {%- set messages = messages[1:] %}
{%- endif %}
{%- for message in messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{- raise_exception('turns must alternate') }}{%- endif %}
    {%- if message['role'] == 'user' %}
        {{- bos_token + '[INST] ' + (head.text if loop.first else '') + message['content'] | trim + ' [/INST]' }}
    {%- else %}
        {{- ' ' + message['content'] | trim + ' ' + eos_token }}
    {%- endif %}
{%- endfor %}
"""
# Folder: model, template, special tokens (the first is bos, the second eos), end tokens of the model.
KINDS = {
    "chatml": ("llama", CHATML, ["<|endoftext|>", "<|im_end|>", "<|im_start|>"], [0, 1]),
    "headers": ("llama", HEADERS, ["<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>",
                                   "<|end_of_text|>"], [1, 4]),
    "inst": ("llama", INST, ["<s>", "</s>", "<unk>"], [1]),
    "gpt2": ("gpt2", CHATML, ["<|endoftext|>", "<|im_end|>", "<|im_start|>"], [0, 1]),
}


def tokenizer(kind):
    words = [f"{a}{b}{c}" for a in "bdfgklmnprst" for b in "aeiou" for c in ("", "n", "r", "st", "é", "日")]
    text = [" ".join(words[(i * 7 + j * j * 11) % len(words)] for j in range(12)) for i in range(300)]
    special, alphabet = list(KINDS[kind][2]), []
    if kind == "inst":
        t = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
        special += [f"<0x{i:02X}>" for i in range(256)]
        t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(),
                                       decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    else:
        t = Tokenizer(models.BPE(ignore_merges=kind == "headers"))
        split = pre_tokenizers.Split(Regex(r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s+"),
                                     "isolated")
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=kind != "headers")
        t.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level]) if kind == "headers" else byte_level
        t.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    t.train_from_iterator(text, trainers.BpeTrainer(vocab_size=VOCAB, special_tokens=special,
                                                    initial_alphabet=alphabet, show_progress=False))
    bos, eos = special[:2]
    if kind != "chatml":
        t.post_processor = processors.TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, 0)])
    # What the folder's template and special tokens say is in its files alone.
    return PreTrainedTokenizerFast(tokenizer_object=t, bos_token=bos, eos_token=eos, pad_token=eos,
                                   chat_template=KINDS[kind][1])


def make_folder(kind, seed):
    """A folder of transformers, read again as a user would read it."""
    torch.manual_seed(seed)
    shape = dict(vocab_size=VOCAB, initializer_range=0.3, bos_token_id=0, eos_token_id=1)
    if KINDS[kind][0] == "llama":
        model = LlamaForCausalLM(LlamaConfig(hidden_size=64, intermediate_size=160, num_hidden_layers=3,
                                             num_attention_heads=4, num_key_value_heads=2,
                                             max_position_embeddings=1024, tie_word_embeddings=False, **shape))
    else:
        model = GPT2LMHeadModel(GPT2Config(n_embd=64, n_layer=3, n_head=4, n_positions=1024, **shape))
    model.generation_config.eos_token_id = KINDS[kind][3]
    model.generation_config.do_sample = False
    model.save_pretrained(kind)
    tokenizer(kind).save_pretrained(kind)
    return (AutoTokenizer.from_pretrained(kind),
            AutoModelForCausalLM.from_pretrained(kind, dtype=torch.float32, attn_implementation="eager"))


def answer(t, model, messages, **variables):
    """What transformers answers: prompt, tokens, text; and how far the best token of each step leads."""
    ids = t.apply_chat_template(messages, add_generation_prompt=True, return_dict=False, **variables)
    text = t.apply_chat_template(messages, add_generation_prompt=True, tokenize=False, **variables)
    assert ids == t(text, add_special_tokens=False).input_ids
    given = torch.tensor([ids])
    out = model.generate(given, attention_mask=torch.ones_like(given), max_new_tokens=MOST,
                         output_logits=True, return_dict_in_generate=True)
    tokens = out.sequences[0, len(ids):].tolist()
    best = torch.stack([step[0] for step in out.logits]).topk(2).values
    leads = (best[:, 0] - best[:, 1]).tolist()
    stopped = tokens[-1] in model.generation_config.eos_token_id
    tokens = tokens[:-1] if stopped else tokens
    text = t.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return dict(messages=messages, prompt=ids, tokens=tokens, text=text, leads=leads,
                reason="stop" if stopped else "length")


def converse(t, model, system):
    """A row for each turn; its messages are all before it."""
    messages, rows = [{"role": "system", "content": system}] if system else [], []
    for user in USER:
        messages = messages + [{"role": "user", "content": user}]
        rows.append(answer(t, model, messages))
        messages = messages + [{"role": "assistant", "content": rows[-1]["text"]}]
    return rows


def write_lines(path, rows):
    with open(path, "w") as f:
        f.writelines(json.dumps(row) + "\n" for row in rows)


def make():
    for seed, kind in enumerate(KINDS):
        t, model = make_folder(kind, seed)
        # One end token more, so that some answers end.
        model.generation_config.eos_token_id = KINDS[kind][3] + \
            answer(t, model, [{"role": "user", "content": USER[0]}])["tokens"][9:10]
        model.generation_config.save_pretrained(kind)
        rows = converse(t, model, None) + converse(t, model, SYSTEM)
        rows.append(answer(t, model, [{"role": "user", "content": USER[0]}], enable_thinking=False))
        write_lines(f"{kind}.want", rows)
        write_lines(f"{kind}.chats", [{"messages": r["messages"]} for r in rows[:-1]])
        write_lines(f"{kind}.ids", [{"tokens": r["prompt"]} for r in rows])
    with open("user", "w") as f:
        f.writelines(user + "\n" for user in USER)


def lines(path):
    with open(path) as f:
        return [json.loads(line) for line in f]


def same_tokens(want, got):
    """All of them, or up to a step at which transformers' two best tokens are a rounding apart."""
    same = next((i for i, (a, b) in enumerate(zip(want["tokens"], got)) if a != b),
                min(len(want["tokens"]), len(got)))
    if want["tokens"] == got:
        return True
    assert want["leads"][same] < 1e-4, f"{got}\n{want['tokens']}: {want['leads'][same]} at {same}"
    return False


def check(kind):
    want = lines(f"{kind}.want")
    tied = 0
    varied = {token for row in want for token in row["tokens"]}
    ntokens = sum(len(row["tokens"]) for row in want)
    assert len(want) == 7 and ntokens > 100 and len(varied) > ntokens // 3, f"{len(varied)} of {ntokens}"
    whole = [same_tokens(row, got["completion_tokens"]) for row, got in zip(want, lines(f"{kind}.ids.out"), strict=True)]
    for row, got, is_whole in zip(want, lines(f"{kind}.chats.out") + [None], whole, strict=True):
        tied += not is_whole
        if got and is_whole:
            assert (got["completion"], got["ntokens"], got["finish_reason"]) == \
                (row["text"], len(row["tokens"]), row["reason"]), f"{got}\n{row}"
    assert tied <= 1, f"{tied} ties: another seed has fewer"
    texts = [row["text"] + "\n" for row in want]
    for path, rows in (("talk", (0, 1, 2)), ("talk.system", (3, 4, 5)), ("one", (0,)), ("one.system", (3,)),
                       ("one.variable", (6,))):
        got = open(f"{kind}.{path}", newline="").read()
        if all(whole[i] for i in rows):
            assert got == "".join(texts[i] for i in rows), f"{path}: {got!r}\n{[texts[i] for i in rows]}"
    assert any(row["reason"] == "stop" for row in want), "no answer ends"
    print(f"{len(want)} answers, {ntokens} tokens, {len(varied)} of them different, "
          f"{sum(row['reason'] == 'stop' for row in want)} ended by an end token, {tied} ties")


if __name__ == "__main__":
    dict(make=make, check=check)[sys.argv[1]](*sys.argv[2:])
