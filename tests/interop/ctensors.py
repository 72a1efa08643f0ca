# SPDX-License-Identifier: Apache-2.0
"""Folders that ckpt-merge --quantize writes against compressed-tensors' own compressor, on the CPU.

make             tiny Llamas in MODEL.f32, .bf16 and .f16, with rows of zeros, negative zeros and values between two
                 codes; a tiny model of each family (families.py) in bf16, in folder FAMILY; a LoRA adapter of
                 MODEL.bf16 in `adapter`, and `merged`, what PEFT makes of both; and for each of them FOLDER.SCHEME.own,
                 which compressed-tensors wrote
                 `pairs` has FOLDER SCHEME of those folders on each line, and `codes` the same of folders that ckpt-merge
                 decodes; some of schemes that it does not write
check            prints TAP lines: FOLDER.SCHEME.ours has the tensors and the config.json of FOLDER.SCHEME.own, to the
                 bit; transformers loads it, without missing or unexpected keys, to a model with the same logits;
                 FOLDER.SCHEME.back has the weights that compressed-tensors decodes, to the bit
"""
import json
import os
import sys
import warnings

import peft
import torch
import transformers
from compressed_tensors.compressors import ModelCompressor
from compressed_tensors.quantization import (QuantizationArgs, QuantizationConfig, QuantizationScheme,
                                             apply_quantization_config)
from compressed_tensors.quantization.quant_scheme import preset_name_to_scheme
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import load_file

import families

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
# Those without a preset have a weight's arguments.
SCHEMES = {
    "fp8_dynamic": "FP8_DYNAMIC",
    "w8a16": "W8A16",
    "w4a16": "W4A16",
    "int8": "INT8",
    "fp8_channel": dict(type="float", strategy="channel"),
    "fp8_tensor": dict(type="float", strategy="tensor"),
    "w8a16_channel": dict(type="int", strategy="channel"),
    "w8a16_g64": dict(type="int", strategy="group", group_size=64),
    "w8a16_g32": dict(type="int", strategy="group", group_size=32),
}
# Not gpt2: its layers are no Linear.
FAMILIES = ["qwen3", "phi3", "gemma2", "gpt_neox", "qwen3_moe", "granitemoe", "gpt_oss"]
LLAMA = dict(vocab_size=64, hidden_size=128, intermediate_size=384, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, head_dim=32, max_position_embeddings=64)


def all_decoded():
    for dtype in DTYPES:
        for scheme in SCHEMES:
            yield f"MODEL.{dtype}", scheme
    yield "odd", "w8a16_channel"
    yield "gpt_oss", "fp8_dynamic"


def all_pairs():
    for dtype in DTYPES:
        for scheme in SCHEMES:
            if scheme not in ("w4a16", "int8"):
                yield f"MODEL.{dtype}", scheme
    for family in FAMILIES:
        yield family, "fp8_dynamic"
        if family != "qwen3_moe":  # transformers 5.24 looks for packed experts, in compressed-tensors' folder, too
            yield family, "w8a16_channel"
    yield "merged", "fp8_tensor"
    yield "merged", "w8a16"
    yield "odd", "w8a16_channel"


def scheme_of(name):
    how = SCHEMES[name]
    if isinstance(how, str):
        return preset_name_to_scheme(how, ["Linear"])
    return QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(num_bits=8, symmetric=True, **how))


def ranges_of(weight, args):
    """The least and the largest value of all that has one scale."""
    if args.strategy == "tensor":
        return torch.aminmax(weight)
    if args.strategy == "channel":
        return weight.aminmax(dim=1, keepdim=True)
    return weight.unflatten(1, (-1, args.group_size)).aminmax(dim=-1)


def quantize(folder, scheme):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    apply_quantization_config(model, QuantizationConfig(
        config_groups={"group_0": scheme_of(scheme)}, ignore=["lm_head", "embed_out"]), show_progress=False)
    for module in model.modules():
        how = getattr(module, "quantization_scheme", None)
        if how is not None:
            scale, _ = calculate_qparams(*ranges_of(module.weight, how.weights), how.weights)
            module.weight_scale.data.copy_(scale.reshape(module.weight_scale.shape))
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(f"{folder}.{scheme}.own")
    compressor.update_config(f"{folder}.{scheme}.own")


def make_llama(folder, dtype, **keys):
    torch.manual_seed(3)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**dict(LLAMA, **keys))).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.05)
        first = model.model.layers[0]
        first.self_attn.k_proj.weight.zero_()
        first.self_attn.q_proj.weight[3] = 0
        first.self_attn.q_proj.weight[5, 7] = -0.0
        first.mlp.up_proj.weight[1] *= 1e-5
        first.mlp.up_proj.weight[2] *= 1e-6
        first.mlp.up_proj.weight[2, 0] = 3
        down = first.mlp.down_proj.weight
        down.copy_(torch.linspace(-448, 448, down.numel()).reshape(down.shape))
        gate = first.mlp.gate_proj.weight
        gate[0] = -2
        gate[1] = torch.linspace(-127.5, 127.5, gate.shape[1])
    model.save_pretrained(folder)


def list_pairs(path, pairs):
    with open(path, "w") as file:
        for pair in pairs:
            print(*pair, file=file)


def make():
    for name, dtype in DTYPES.items():
        make_llama(f"MODEL.{name}", dtype)
    make_llama("odd", torch.bfloat16, hidden_size=72, intermediate_size=99)
    for family in FAMILIES:
        keys = {k: v for k, v in families.MODELS[family].items() if v is not None}
        config = transformers.AutoConfig.for_model(family, bos_token_id=1, eos_token_id=2, pad_token_id=None, **keys)
        torch.manual_seed(5)
        transformers.AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(family)
    base = transformers.AutoModelForCausalLM.from_pretrained("MODEL.bf16")
    lora = peft.get_peft_model(base, peft.LoraConfig(r=4, target_modules=["q_proj", "down_proj"]))
    with torch.no_grad():
        for name, parameter in lora.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.1)
    lora.save_pretrained("adapter")
    lora.merge_and_unload().save_pretrained("merged")
    for folder, scheme in dict.fromkeys([*all_pairs(), *all_decoded()]):
        quantize(folder, scheme)
    list_pairs("pairs", all_pairs())
    list_pairs("codes", all_decoded())


def load_tensors(folder):
    return load_file(f"{folder}/model.safetensors")


def check_tensors(own, ours):
    want, got = load_tensors(own), load_tensors(ours)
    assert want.keys() == got.keys(), sorted(want.keys() ^ got.keys())[:4]
    for name, tensor in want.items():
        mine = got[name]
        assert (mine.dtype, mine.shape) == (tensor.dtype, tensor.shape), name
        assert torch.equal(mine.reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8)), name


def load_config(folder):
    with open(f"{folder}/config.json") as f:
        return json.load(f)


def is_expert(layer):
    return ".experts" in layer or layer.endswith(("block_sparse_moe.input_linear", "block_sparse_moe.output_linear"))


def check_config(own, ours):
    """Equal, but that experts are listed, which other programs have as layers, that gpt_neox's head is listed under
    both of its names, and that the list has another order."""
    want, got = load_config(own), load_config(ours)
    a, b = want.pop("quantization_config"), got.pop("quantization_config")
    assert want == got, "config.json"
    ignored = {layer for layer in b.pop("ignore") if not is_expert(layer)}
    assert set(a.pop("ignore")) | {"lm_head"} == ignored, ignored
    assert a == b, b


def load_logits(folder):
    model, notes = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True,
                                                                     experts_implementation="eager")
    assert not any(notes.values()), notes
    with torch.no_grad():
        return model.eval()(torch.tensor([families.TOKENS[:12]]).clamp(max=63)).logits


def list_head(folder):
    """transformers knows gpt_neox's head as lm_head, and compressed-tensors lists it as embed_out alone."""
    config = load_config(folder)
    config["quantization_config"]["ignore"].append("lm_head")
    with open(f"{folder}/config.json", "w") as f:
        json.dump(config, f)


def check_loads(own, ours):
    list_head(own)
    want, got = load_logits(own), load_logits(ours)
    assert want.isfinite().all() and want.abs().max() > 0 and torch.equal(want, got), (want - got).abs().max()


def check_decoded(own, back):
    how = transformers.CompressedTensorsConfig(dequantize=True)
    transformers.AutoModelForCausalLM.from_pretrained(own, quantization_config=how).save_pretrained("decoded")
    check_tensors("decoded", back)
    assert "quantization_config" not in load_config(back)


def say(check, text, *args):
    try:
        check(*args)
        print(f"ok - {text}")
    except Exception as e:  # a check that fails is a line, and others follow
        print(f"not ok - {text}: {type(e).__name__}: {str(e)[:300]}")


def check_all():
    for folder, scheme in all_pairs():
        both = f"{folder}.{scheme}.own", f"{folder}.{scheme}.ours"
        say(check_tensors, f"{folder}, {scheme}: compressed-tensors' own scales and codes", *both)
        say(check_config, f"{folder}, {scheme}: its config.json", *both)
        say(check_loads, f"{folder}, {scheme}: transformers loads it", *both)
    for folder, scheme in all_decoded():
        both = f"{folder}.{scheme}.own", f"{folder}.{scheme}.back"
        say(check_decoded, f"{folder}, {scheme}: decoded", *both)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if sys.argv[1] == "make":
        make()
    else:
        check_all()
