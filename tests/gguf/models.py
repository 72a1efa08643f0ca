# SPDX-License-Identifier: Apache-2.0
"""Tiny models of the families that are written as GGUF, with a tokenizer each, against llama.cpp.

list                 the families
peers                those that llama.cpp's own converter writes, too, and as transformers computes them
make FAMILY...       a model of each in folder FAMILY, with every trait of the family that GGUF can carry
check FAMILY...      prints a TAP line for each check of each family, of FAMILY.f32.gguf:
  logits             llama.cpp's are those of transformers in fp64, within BOUND of the largest
  tokens             and so is the best token wherever the two best logits are farther apart than that
  text               llama_tokenize gives the ids of the tokenizer, of texts with all that a pre-tokenizer splits
"""
import json
import os
import sys

import numpy as np
import torch
import transformers
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoConfig, AutoModelForCausalLM

VOCAB = 400
IDS = [0, 1, 66, 17, 42, 42, 9, 5, 30, 3, 61, 7, 8, 2, 300, 77, 259, 11, 4, 90]
TEXTS = ["Hello, world! It's 12345 o'clock; we'LL see.", "  two  spaces\n\n\nand\ttabs \r\n", "naïve café Ünïcode",
         "Привет, мир", "你好世界 123", "emoji 😀👍🏽 mix", "x=1.5e-10;  // end", "don't I'd they've", "\n \n  a", "HTTPServer2Go"]

COMMON = dict(vocab_size=VOCAB, hidden_size=64, intermediate_size=96, num_hidden_layers=4, num_attention_heads=4,
              num_key_value_heads=2, max_position_embeddings=64, initializer_range=0.2)
TYPES = dict(sliding_window=7, layer_types=["sliding_attention", "full_attention"] * 2)
FULL = ["full_attention"] * 4
EXPERTS = dict(COMMON, num_experts_per_tok=2)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=32, rope_theta=1000.0)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16, rope_theta=1000.0)
# llama.cpp takes the short factors as long as its context, of 256 tokens at least, is not above the original one.
LONG = dict(rope_type="longrope", rope_theta=10000.0, original_max_position_embeddings=256,
            short_factor=[1.0 + i / 8 for i in range(8)], long_factor=[1.5 + i for i in range(8)])
# name: (model_type, keys of config.json, bound, tokenizer)
MODELS = {
    "llama": ("llama", dict(COMMON, head_dim=20, attention_bias=True, mlp_bias=True), 1e-5, "llama3"),
    "llama3": ("llama", dict(COMMON, rope_parameters=LLAMA3, tie_word_embeddings=True), 1e-5, "llama3"),
    "llama-yarn": ("llama", dict(COMMON, rope_parameters=YARN), 1e-5, "llama3"),
    "llama-linear": ("llama", dict(COMMON, rope_parameters=dict(rope_type="linear", factor=4.0, rope_theta=1000.0)),
                     1e-5, "digits"),
    "llama-dynamic": ("llama", dict(COMMON, rope_parameters=dict(rope_type="dynamic", factor=4.0, rope_theta=1000.0)),
                      1e-5, "digits"),
    "llama-yarn-bounds": ("llama", dict(COMMON, head_dim=20, rope_parameters=dict(YARN, truncate=False, beta_fast=8.0,
                                                                                  attention_factor=1.25)), 1e-5, "llama3"),
    "llama-yarn-mscale": ("llama", dict(COMMON, rope_parameters=dict(YARN, mscale=0.7, mscale_all_dim=0.3)),
                          1e-5, "llama3"),
    "llama-long": ("llama", dict(COMMON, max_position_embeddings=1024, rope_parameters=dict(LONG, attention_factor=1.25)),
                   1e-5, "llama3"),
    "llama-tekken": ("llama", dict(COMMON), 1e-5, "tekken"),
    "qwen2-35": ("qwen2", dict(COMMON), 1e-5, "qwen35"),
    "ministral": ("ministral", dict(COMMON, head_dim=20, **TYPES), 1e-5, "tekken"),
    "ministral-window": ("ministral", dict(COMMON, head_dim=16, sliding_window=7, tie_word_embeddings=True), 1e-5, "spm"),
    "ministral-plain": ("ministral", dict(COMMON, head_dim=16, sliding_window=None), 1e-5, "spm"),
    "ministral3": ("ministral3", dict(COMMON, head_dim=20, rope_parameters=dict(
        YARN, llama_4_scaling_beta=0.3, beta_fast=32.0, beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0)), 1e-5, "tekken"),
    "ministral3-mscale": ("ministral3", dict(COMMON, head_dim=16, tie_word_embeddings=True, rope_parameters=dict(
        YARN, llama_4_scaling_beta=0.3, beta_fast=8.0, mscale=0.7, mscale_all_dim=0.3)), 1e-5, "spm"),
    "ministral3-bounds": ("ministral3", dict(COMMON, head_dim=16, rope_parameters=dict(
        YARN, llama_4_scaling_beta=0.3, truncate=False)), 1e-5, "tekken"),
    "ministral3-plain": ("ministral3", dict(COMMON, head_dim=16, rope_parameters=dict(
        rope_type="default", rope_theta=1000.0, original_max_position_embeddings=8, llama_4_scaling_beta=0.3)),
        1e-5, "tekken"),
    "mistral": ("mistral", dict(COMMON, head_dim=20, sliding_window=None), 1e-5, "spm"),
    "mixtral": ("mixtral", dict(EXPERTS, num_local_experts=5, sliding_window=None), 1e-5, "spm"),
    "qwen2": ("qwen2", dict(COMMON), 1e-5, "qwen2"),
    "qwen2-yarn": ("qwen2", dict(COMMON, rope_parameters=dict(YARN, attention_factor=1.25)), 1e-5, "qwen2"),
    "qwen3": ("qwen3", dict(COMMON, head_dim=24), 1e-5, "qwen2"),
    "qwen3_moe": ("qwen3_moe", dict(EXPERTS, num_experts=6, moe_intermediate_size=32, head_dim=24, norm_topk_prob=True),
                  1e-5, "qwen2"),
    "smollm3": ("smollm3", dict(COMMON, no_rope_layers=[1, 1, 1, 0]), 1e-5, "llama3"),
    "smollm3-heads": ("smollm3", dict(COMMON, head_dim=20), 1e-5, "llama3"),
    "olmo2": ("olmo2", dict(COMMON), 1e-5, "dbrx"),
    "olmo2-tied": ("olmo2", dict(COMMON, tie_word_embeddings=True, hidden_act="swish"), 1e-5, "dbrx"),
    "olmo3": ("olmo3", dict(COMMON, **TYPES), 1e-5, "dbrx"),
    "olmo3-yarn": ("olmo3", dict(COMMON, **TYPES, tie_word_embeddings=True, rope_parameters=dict(
        full_attention=dict(YARN, attention_factor=1.25), sliding_attention=dict(rope_type="default", rope_theta=1000.0))),
        1e-5, "dbrx"),
    "olmoe": ("olmoe", dict(EXPERTS, num_experts=6, num_key_value_heads=4, norm_topk_prob=False), 1e-5, "gpt2"),
    "phi3": ("phi3", dict(COMMON, sliding_window=None), 1e-5, "spm"),
    "phi3-long": ("phi3", dict(COMMON, sliding_window=None, original_max_position_embeddings=256,
                               max_position_embeddings=1024, rope_parameters=dict(LONG)), 1e-5, "spm"),
    "phi3-attention": ("phi3", dict(COMMON, sliding_window=None, original_max_position_embeddings=256,
                                    max_position_embeddings=1024, rope_parameters=dict(LONG, attention_factor=1.5)),
                       1e-5, "spm"),
    "gemma": ("gemma", dict(COMMON, head_dim=20, initializer_range=0.1), 1e-3, "spm-nospace"),
    "gemma2": ("gemma2", dict(COMMON, head_dim=20, query_pre_attn_scalar=20, final_logit_softcapping=5.0,
                              attn_logit_softcapping=3.0, **TYPES), 1e-3, "spm-nospace"),
    "gemma3_text": ("gemma3_text", dict(COMMON, head_dim=20, query_pre_attn_scalar=20, **TYPES), 1e-3, "spm-nospace"),
    "gemma3_text-linear": ("gemma3_text", dict(COMMON, head_dim=20, query_pre_attn_scalar=20, **TYPES, rope_parameters=dict(
        full_attention=dict(rope_type="linear", factor=8.0, rope_theta=1e6),
        sliding_attention=dict(rope_type="default", rope_theta=1e4))), 1e-3, "spm-nospace"),
    "gemma3": ("gemma3", dict(text_config=dict(COMMON, head_dim=20, query_pre_attn_scalar=20, pad_token_id=None, **TYPES),
                              vision_config=dict(hidden_size=20, intermediate_size=28, num_hidden_layers=2,
                                                 num_attention_heads=2, image_size=28, patch_size=14),
                              image_token_index=VOCAB + 2, boi_token_index=VOCAB, eoi_token_index=VOCAB + 1,
                              mm_tokens_per_image=4), 1e-3, "spm-nospace"),
    "gemma3_text-full": ("gemma3_text", dict(COMMON, head_dim=20, query_pre_attn_scalar=20, layer_types=FULL), 1e-3,
                         "spm-nospace"),
    "gemma2-full": ("gemma2", dict(COMMON, head_dim=20, query_pre_attn_scalar=20, layer_types=FULL), 1e-3, "spm-nospace"),
    "gpt_oss-full": ("gpt_oss", dict(EXPERTS, num_local_experts=5, head_dim=16, layer_types=FULL,
                                     rope_parameters=dict(rope_type="default", rope_theta=1000.0)), 1e-5, "gpt-4o"),
    "olmo3-full": ("olmo3", dict(COMMON, layer_types=FULL), 1e-5, "dbrx"),
    "granite-llama3": ("granite", dict(COMMON, head_dim=20, rope_parameters=LLAMA3), 1e-5, "digits"),
    "granite": ("granite", dict(COMMON, attention_bias=True, mlp_bias=True, embedding_multiplier=12.0,
                                logits_scaling=8.0, residual_multiplier=0.22, attention_multiplier=0.15), 1e-5, "digits"),
    "granitemoe": ("granitemoe", dict(EXPERTS, num_local_experts=5, embedding_multiplier=12.0, logits_scaling=8.0,
                                      residual_multiplier=0.22, attention_multiplier=0.15), 1e-5, "digits"),
    "granitemoeshared": ("granitemoeshared", dict(EXPERTS, num_local_experts=5, shared_intermediate_size=48,
                                                  embedding_multiplier=12.0, logits_scaling=8.0, residual_multiplier=0.22,
                                                  attention_multiplier=0.15), 1e-5, "digits"),
    "granitemoeshared-none": ("granitemoeshared", dict(EXPERTS, num_local_experts=5, shared_intermediate_size=0),
                              1e-5, "digits"),
    "gpt_oss-yarn": ("gpt_oss", dict(EXPERTS, num_local_experts=5, head_dim=16, **TYPES, rope_parameters=YARN),
                     1e-5, "gpt-4o"),
    "gpt_oss": ("gpt_oss", dict(EXPERTS, num_local_experts=5, head_dim=16, **TYPES,
                                rope_parameters=dict(rope_type="default", rope_theta=1000.0)), 1e-5, "gpt-4o"),
    "gpt2": ("gpt2", dict(vocab_size=VOCAB, n_embd=64, n_layer=3, n_head=4, n_positions=64, embd_pdrop=0, attn_pdrop=0,
                          resid_pdrop=0, initializer_range=0.2), 1e-3, "gpt2"),
    "gpt_neox": ("gpt_neox", dict(COMMON, rotary_pct=0.5, num_key_value_heads=None), 1e-3, "gpt2"),
}
# Not GPT-2 and GPT-NeoX, whose folders of transformers 5 the converter does not read, nor Qwen2, to whose tokenizer
# transformers adds a token. Of the others the converter has no such family, or leaves out a part of what they compute.
NO_PEER = ("gpt2", "gpt_neox", "qwen2", "qwen2-35", "qwen2-yarn", "llama-dynamic", "llama-yarn-bounds",
           "llama-yarn-mscale", "llama-long", "ministral", "ministral-window", "ministral-plain", "ministral3-bounds",
           "ministral3-plain", "olmo2-tied", "olmo3-yarn", "olmo3-full", "phi3-attention", "gemma2-full",
           "gemma3_text-full", "gpt_oss-full", "granite-llama3")
# ---- tokenizers --------------------------------------------------------------------------------

CONTRACTIONS, ENDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)", r"|\s*[\r\n]+|\s+(?!\S)|\s+"
BEFORE, UPPER, LOWER = r"[^\r\n\p{L}\p{N}]?", r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
WORDS = CONTRACTIONS + "|" + BEFORE + r"\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*" + ENDS
O200K = (BEFORE + "[" + UPPER + "]*[" + LOWER + "]+" + CONTRACTIONS + "?|" + BEFORE + "[" + UPPER + "]+[" + LOWER +
         "]*" + CONTRACTIONS + r"?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + ENDS)
TEKKEN = (BEFORE + "[" + UPPER + "]*[" + LOWER + "]+|" + BEFORE + "[" + UPPER + "]+[" + LOWER + "]*" +
          r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + ENDS)
QWEN35 = (CONTRACTIONS + "|" + BEFORE + r"[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + ENDS)
SPLITS = {"llama3": WORDS % "{1,3}", "dbrx": WORDS % "{1,3}", "qwen2": WORDS % "", "gpt-4o": O200K, "tekken": TEKKEN,
          "qwen35": QWEN35}
TEMPLATE = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"


def pre_tokenizer(kind):
    if kind == "gpt2":
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    if kind == "digits":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                        pre_tokenizers.ByteLevel(add_prefix_space=False)])
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(SPLITS[kind]), "isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def make_bpe(kind, folder):
    """300 tokens that are learned, two that are special, and one of the user's."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=kind == "llama3"))
    tokenizer.pre_tokenizer = pre_tokenizer(kind)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(TEXTS * 3, trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet,
                                                                 show_progress=False))
    tokenizer.add_special_tokens(["<|begin|>", "<|end|>"])
    tokenizer.add_tokens(["<tool>"])
    if kind == "llama3":
        begin = tokenizer.token_to_id("<|begin|>")
        tokenizer.post_processor = processors.TemplateProcessing(single="<|begin|> $A", pair="<|begin|> $A $B",
                                                                 special_tokens=[("<|begin|>", begin)])
    tokenizer.save(os.path.join(folder, "tokenizer.json"))
    with open(os.path.join(folder, "tokenizer_config.json"), "w") as f:
        json.dump(dict(tokenizer_class="PreTrainedTokenizerFast", bos_token="<|begin|>", eos_token="<|end|>",
                       chat_template=TEMPLATE), f)


def make_spm(kind, folder):
    import sentencepiece
    spaces = kind == "spm"
    with open(os.path.join(folder, "tokenizer.txt"), "w") as f:
        f.write("\n".join([t for t in TEXTS if t.isascii()] * 3))
    sentencepiece.SentencePieceTrainer.train(
        input=os.path.join(folder, "tokenizer.txt"), model_prefix=os.path.join(folder, "tokenizer"), vocab_size=380,
        model_type="bpe", byte_fallback=True, add_dummy_prefix=spaces, normalization_rule_name="identity",
        remove_extra_whitespaces=False, character_coverage=0.98, hard_vocab_limit=False, minloglevel=2)
    os.remove(os.path.join(folder, "tokenizer.txt"))
    os.remove(os.path.join(folder, "tokenizer.vocab"))
    with open(os.path.join(folder, "tokenizer_config.json"), "w") as f:
        json.dump(dict(tokenizer_class="LlamaTokenizer", bos_token="<s>", eos_token="</s>", unk_token="<unk>",
                       add_bos_token=True, chat_template=TEMPLATE), f)


def make_tokenizer(kind, folder):
    (make_spm if kind.startswith("spm") else make_bpe)(kind, folder)


def ids_of(kind, folder, text):
    if not kind.startswith("spm"):
        return Tokenizer.from_file(os.path.join(folder, "tokenizer.json")).encode(text).ids
    import sentencepiece
    return [1] + sentencepiece.SentencePieceProcessor(os.path.join(folder, "tokenizer.model")).encode(text)


# ---- models ------------------------------------------------------------------------------------

def make(*names):
    for name in names:
        seed = 11
        while not make_one(name, seed):  # its router could choose otherwise in another precision
            seed += 1


def make_one(name, seed):
    kind, keys, _, tokenizer = MODELS[name]
    torch.manual_seed(seed)
    config = AutoConfig.for_model(kind, bos_token_id=1, eos_token_id=2, pad_token_id=None,
                                  **{k: v for k, v in keys.items() if v is not None or k == "sliding_window"})
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with torch.no_grad():  # norms and biases begin as ones and zeros, which would hide mistakes
        for parameter_name, parameter in model.named_parameters():
            if parameter.ndim == 1 or parameter_name.endswith("bias"):
                parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(name)
    make_tokenizer(tokenizer, name)
    return "num_experts_per_tok" not in keys or router_margin(name) > 1e-4


def load(name):
    more = {"experts_implementation": "eager"} if "num_experts_per_tok" in MODELS[name][1] else {}
    if name == "ministral-plain":  # transformers makes its masks with a window alone
        more["config"] = transformers.MistralConfig.from_pretrained(name)
    return AutoModelForCausalLM.from_pretrained(name, dtype=torch.float64, attn_implementation="eager", **more).eval()


def router_margin(name):
    model, k = load(name), MODELS[name][1]["num_experts_per_tok"]
    with torch.no_grad():
        out = model(torch.tensor([IDS]), output_router_logits=True)
    margins = [(p[..., k - 1] - p[..., k]).min().item()
               for p in (x.softmax(-1).sort(-1, descending=True).values for x in out.router_logits)]
    return min(margins)


# ---- checks ------------------------------------------------------------------------------------

def check_logits(name, model):
    bound = MODELS[name][2]
    with torch.no_grad():
        want = load(name)(torch.tensor([IDS])).logits[0].numpy()
    got = model.logits(IDS)[:, :want.shape[1]]
    largest = np.abs(want).max()
    worst = np.abs(got - want).max() / largest
    assert worst <= bound, "logits differ by %.3g of the largest" % worst
    best = np.sort(want, -1)
    clear = best[:, -1] - best[:, -2] > bound * largest
    assert clear.sum() > len(IDS) // 2
    assert (got.argmax(-1) == want.argmax(-1))[clear].all()
    return "logits differ by %.2g of the largest; %d best tokens are the same" % (worst, clear.sum())


def check_text(name, model):
    kind = MODELS[name][3]
    for text in TEXTS + ["a <tool> b<|end|>"] * (not kind.startswith("spm")):
        want, got = ids_of(kind, name, text), model.tokenize(text)
        assert got == want, "%r: %s instead of %s" % (text, got, want)
    assert model.chat_template() == TEMPLATE
    return "the ids of %d texts are the same, and the chat template is there" % len(TEXTS)


def report(name, what, function):
    try:
        print("ok - %s: %s" % (name, function()))
    except Exception as e:
        print("not ok - %s: %s\n# %s" % (name, what, str(e)[:1500].replace("\n", "\n# ")))


def check(*names):
    from client import Model
    for name in names:
        try:
            model = Model(name + ".f32.gguf")
        except Exception as e:
            print("not ok - %s: loads\n# %s" % (name, str(e)[:1500].replace("\n", "\n# ")))
            continue
        report(name, "logits", lambda: check_logits(name, model))
        report(name, "text", lambda: check_text(name, model))
        model.close()


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    {"list": lambda: print(*MODELS), "peers": lambda: print(*(name for name in MODELS if name not in NO_PEER)),
     "make": make, "check": check}[sys.argv[1]](*sys.argv[2:])
