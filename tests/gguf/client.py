# SPDX-License-Identifier: Apache-2.0
"""llama.cpp itself, built from the source package of llama-cpp-python by scripts/with_llama.sh, through the bindings of
that package. LLAMA_CPP_LIB_PATH names the folder of its library."""
import ctypes
import os
import sys
import types

import numpy as np

# The packages' own __init__ would need more packages: their modules are taken one by one.
for folder in os.environ["LLAMA_PYTHONPATH"].split(":"):
    for package in ("llama_cpp", "gguf"):
        if os.path.isdir(os.path.join(folder, package)):
            sys.modules[package] = types.ModuleType(package)
            sys.modules[package].__path__ = [os.path.join(folder, package)]
import llama_cpp.llama_cpp as llama  # noqa: E402
from gguf.constants import GGMLQuantizationType  # noqa: E402
from gguf.gguf_reader import GGUFReader  # noqa: E402
from gguf.quants import dequantize, quantize as gguf_quantize  # noqa: E402,F401

messages = []


@llama.llama_log_callback
def keep_message(level, text, data):
    messages.append(text.decode("utf-8", "replace"))


llama.llama_log_set(keep_message, ctypes.c_void_p(0))
llama.llama_backend_init()


class Model:
    """A loaded file. Keys and values are kept as f32, without flash attention, so that nothing is rounded."""

    def __init__(self, path, n_ctx=64):
        messages.clear()
        params = llama.llama_model_default_params()
        params.n_gpu_layers = 0
        self.model = llama.llama_model_load_from_file(path.encode(), params)
        if not self.model:
            raise RuntimeError("llama.cpp does not load '%s': %s" % (path, "".join(messages[-5:])))
        self.vocab = llama.llama_model_get_vocab(self.model)
        self.n_vocab = llama.llama_vocab_n_tokens(self.vocab)
        self.n_ctx = n_ctx

    def logits(self, ids):
        """Of all positions: (len(ids), vocabulary)."""
        params = llama.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = self.n_ctx, self.n_ctx, self.n_ctx
        params.n_threads = params.n_threads_batch = 1
        params.type_k = params.type_v = 0  # GGML_TYPE_F32
        params.flash_attn_type = 0
        context = llama.llama_init_from_model(self.model, params)
        if not context:
            raise RuntimeError("no context: " + "".join(messages[-5:]))
        batch = llama.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = token, i, 1, 0, 1
        if llama.llama_decode(context, batch):
            raise RuntimeError("llama_decode failed: " + "".join(messages[-5:]))
        out = np.ctypeslib.as_array(llama.llama_get_logits(context), shape=(len(ids), self.n_vocab)).copy()
        llama.llama_batch_free(batch)
        llama.llama_free(context)
        return out

    def tokenize(self, text, special=True):
        """Ids of a text, with the tokens that the file says are added to it."""
        data = text.encode()
        room = (llama.llama_token * (len(data) + 16))()
        count = llama.llama_tokenize(self.vocab, data, len(data), room, len(room), special, True)
        return list(room[:count])

    def chat_template(self):
        found = llama.llama_model_chat_template(self.model, None)
        return found.decode() if found else None

    def close(self):
        llama.llama_model_free(self.model)


def read_tensors(path):
    """name: (type's name, raw bytes, shape with rows first, values as f32)."""
    out = {}
    for t in GGUFReader(path).tensors:
        values = dequantize(t.data, t.tensor_type).astype(np.float32)
        out[t.name] = (GGMLQuantizationType(t.tensor_type).name, t.data.tobytes(), [int(d) for d in t.shape[::-1]], values)
    return out


def read_keys(path):
    return {name: field.contents() for name, field in GGUFReader(path).fields.items() if not name.startswith("GGUF.")}


def quantize(source, target, file_type):
    """llama_model_quantize, without an importance matrix; file_type: a number of general.file_type."""
    params = llama.llama_model_quantize_default_params()
    params.ftype, params.nthread = file_type, 1
    if llama.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(params)):
        raise RuntimeError("llama_model_quantize failed: " + "".join(messages[-5:]))
