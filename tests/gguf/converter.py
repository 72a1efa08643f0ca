# SPDX-License-Identifier: Apache-2.0
"""ckpt-merge's files against those of llama.cpp's own converter.

convert FOLDER...   FOLDER.peer.gguf by convert_hf_to_gguf.py, of type f16
check FOLDER...     of FOLDER.f16.gguf, which ckpt-merge wrote: each tensor is that of FOLDER.peer.gguf to the bit, and so
                    is each key that both have; keys that the converter alone has are among those that say who made a
                    file
"""
import os
import runpy
import sys

import numpy as np

from models import MODELS, report

# What only tells where a model comes from, and what llama.cpp takes as given.
OWN = ("general.size_label", "general.name", "general.basename", "general.finetune", "general.version",
       "general.sampling.", "tokenizer.ggml.prefix_token_id", "tokenizer.ggml.suffix_token_id",
       "tokenizer.ggml.middle_token_id", "tokenizer.ggml.fsep_token_id", "tokenizer.ggml.eot_token_id",
       "tokenizer.ggml.add_sep_token", "phi3.attention.sliding_window")
PRE = {"llama3": "llama-bpe", "gpt2": "gpt-2", "digits": "smollm"}


def convert(*folders):
    converter = os.environ["LLAMA_CONVERTER"]
    sys.path[:0] = [os.path.dirname(converter), os.path.join(os.path.dirname(converter), "gguf-py")]
    import conversion.base as base
    for folder in folders:
        # The converter knows published tokenizers by a hash alone: the name is said instead, and
        # models.py has proved it by the ids.
        kind = MODELS[folder][3]
        base.TextModel.get_vocab_base_pre = lambda self, tokenizer: PRE.get(kind, kind)
        sys.argv = ["convert", folder, "--outfile", folder + ".peer.gguf", "--outtype", "f16"]
        try:
            runpy.run_path(converter, run_name="__main__")
        except SystemExit:
            pass
        except Exception as e:
            print("%s: %s" % (folder, repr(e)[:300]), file=sys.stderr)


def check_tensors(folder):
    from client import read_tensors
    ours, theirs = read_tensors(folder + ".f16.gguf"), read_tensors(folder + ".peer.gguf")
    assert set(ours) == set(theirs), set(ours) ^ set(theirs)
    wider = 0
    for name, (kind, raw, shape, values) in ours.items():
        want = theirs[name]
        assert shape == want[2], "%s: %s instead of %s" % (name, shape, want[2])
        if kind == "F32" and want[0] == "F16":  # small tensors that the converter rounds
            wider += 1
            values = values.astype("float16").astype("float32")
            assert (values.reshape(-1) == want[3].reshape(-1)).all(), name
            continue
        assert kind == want[0], "%s: %s instead of %s" % (name, kind, want[0])
        if name == "rope_freqs.weight":  # computed from the configuration, there in single precision
            wider += 1
            assert np.abs(values / want[3] - 1).max() < 1e-5, name
            continue
        assert raw == want[1], name
    return "%d of %d tensors are the converter's to the bit" % (len(ours) - wider, len(ours))


def check_keys(folder):
    from client import read_keys
    ours, theirs = read_keys(folder + ".f16.gguf"), read_keys(folder + ".peer.gguf")
    other = {k: (ours[k], theirs[k]) for k in ours if k in theirs and ours[k] != theirs[k] and not k.startswith(OWN)}
    assert not other, "\n".join("%s: %s instead of %s" % (k, str(a)[:200], str(b)[:200]) for k, (a, b) in other.items())
    missing = [k for k in theirs if k not in ours and not k.startswith(OWN)]
    assert not missing, {k: str(theirs[k])[:60] for k in missing}
    return "%d keys are the converter's; more: %s" % (len(set(ours) & set(theirs)), ", ".join(sorted(set(ours) - set(theirs))))


def check(*folders):
    for folder in folders:
        report(folder, "tensors", lambda: check_tensors(folder))
        report(folder, "keys", lambda: check_keys(folder))


if __name__ == "__main__":
    {"convert": convert, "check": check}[sys.argv[1]](*sys.argv[2:])
