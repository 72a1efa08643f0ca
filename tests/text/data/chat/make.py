#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes what transformers renders next to the templates: semantics.json (expressions in a context) and
renderings.json (templates *.jinja of this folder on conversations.json). Run it with a Python that has
transformers and jinja2, after a template or a case was added."""
import datetime
import glob
import json
import os
import re

from transformers.utils import chat_template_utils as utils

HERE = os.path.dirname(os.path.abspath(__file__))


class Now(datetime.datetime):
    fixed = None

    @classmethod
    def now(cls, tz=None):
        return cls.fixed


def read(name):
    with open(os.path.join(HERE, name), encoding="utf-8", newline="") as file:
        return file.read()


def render(source, messages, tools, prompt, variables):
    """The answer of one case: its text and spans, or the kind of its error."""
    messages = [{k: v for k, v in m.items() if v is not None} for m in messages]
    variables = dict(variables)
    documents = variables.pop("documents", None)
    marks = re.search(r"\{%-?\s*generation\s*-?%\}", source) is not None
    try:
        texts, spans = utils.render_jinja_template([messages], tools, documents, source, marks, False, prompt,
                                                   **variables)
    except Exception as err:  # whatever a template can raise
        return {"error": type(err).__name__ + ": " + str(err)}
    out = {"text": texts[0]}
    if marks:
        nbytes = [len(texts[0][:i].encode()) for i in range(len(texts[0]) + 1)]
        out["spans"] = [[nbytes[min(i, len(texts[0]))] for i in span] for span in spans[0]]
    return out


def write(name, value):
    with open(os.path.join(HERE, name), "w", encoding="utf-8") as file:
        json.dump(value, file, indent=1, ensure_ascii=False)
        file.write("\n")


def main():
    conversations = json.loads(read("conversations.json"))
    Now.fixed = Now.fromisoformat(conversations["now"])
    utils.datetime = Now
    semantics = json.loads(read("semantics.json"))
    for case in semantics["cases"]:
        template = case["template"]
        case.clear()
        case["template"] = template
        case.update(render(template, [{"role": "user", "content": "x"}], None, False, semantics["context"]))
    write("semantics.json", semantics)
    out = {}
    for path in sorted(glob.glob(os.path.join(HERE, "*.jinja"))):
        name = os.path.basename(path)
        out[name] = {c["name"]: render(read(name), c["messages"], c.get("tools"), c["add_generation_prompt"],
                                       {**conversations["special_tokens"], **c.get("kwargs", {})})
                     for c in conversations["conversations"]}
    write("renderings.json", out)


if __name__ == "__main__":
    main()
