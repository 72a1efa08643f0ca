# SPDX-License-Identifier: Apache-2.0
"""chat.py PROGRAM FOLDER: renders the conversations of tests/text/data/chat with every template below
FOLDER, by transformers and by the program (tests/interop/test_chat_render.c), and compares."""
import glob
import json
import os
import subprocess
import sys
import zipfile

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../text/data/chat"))
import make

# What a template may be asked besides: variables of real ones.
MORE = [{}, {"enable_thinking": True, "reasoning_effort": "high", "add_vision_id": True,
             "preserve_thinking": True, "documents": [{"title": "T", "text": "x\ny"}],
             "response_format": {"type": "object"}, "date_string": "26 Jul 2024"}]


def templates(folder):
    """Name and source of each, once."""
    seen = {}
    for path in glob.glob(folder + "/**/*.jinja", recursive=True):
        with open(path, encoding="utf-8", newline="") as file:
            seen.setdefault(file.read(), os.path.basename(path))
    for path in glob.glob(folder + "/**/*.whl", recursive=True):
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if name.endswith(".jinja"):
                    seen.setdefault(archive.read(name).decode(), os.path.basename(name))
    return sorted((name, source) for source, name in seen.items())


def asks(source, conversations):
    for c in conversations["conversations"]:
        for more in MORE:
            variables = {**conversations["special_tokens"], **more, **c.get("kwargs", {})}
            for prompt in (True, False):
                yield {"source": source, "messages": c["messages"], "tools": c.get("tools"),
                       "extra": variables, "add_generation_prompt": prompt, "date": conversations["now"]}


def expected(ask):
    variables = dict(ask["extra"])
    return make.render(ask["source"], ask["messages"], ask["tools"], ask["add_generation_prompt"], variables)


def differs(want, got):
    if "error" in want:
        return None if "error" in got else "transformers refuses: " + want["error"]
    if "error" in got:
        return "refused: " + got["error"]
    if want["text"] != got["text"]:
        at = next((i for i, (a, b) in enumerate(zip(want["text"], got["text"])) if a != b), -1)
        return "text differs at %d: %r for %r" % (at, got["text"][max(at - 20, 0):at + 40],
                                                  want["text"][max(at - 20, 0):at + 40])
    if want.get("spans", []) != got["spans"] or ("spans" in want) != got["marks"]:
        return "spans %s for %s" % (got["spans"], want.get("spans"))
    return None


def main():
    program, folder = sys.argv[1:3]
    conversations = json.loads(make.read("conversations.json"))
    make.Now.fixed = make.Now.fromisoformat(conversations["now"])
    make.utils.datetime = make.Now
    found = templates(folder)
    nbad = ncases = 0
    for number, (name, source) in enumerate(found, 1):
        cases = list(asks(source, conversations))
        lines = "".join(json.dumps(a) + "\n" for a in cases)
        run = subprocess.run([program, "serve"], input=lines, capture_output=True, text=True, check=True)
        answers = [json.loads(a) for a in run.stdout.split("\n")[:-1]]
        assert len(answers) == len(cases)
        found_bad = [d for d in (differs(expected(a), g) for a, g in zip(cases, answers)) if d]
        ncases += len(cases)
        nbad += len(found_bad) > 0
        print("%s %d - %s: %d renderings" % ("not ok" if found_bad else "ok", number, name, len(cases)))
        for d in found_bad[:3]:
            print("# " + d.replace("\n", "\\n"))
    print("%s %d - %d templates, %d renderings" % ("ok" if len(found) > 100 else "not ok", len(found) + 1,
                                                   len(found), ncases))
    print("1..%d" % (len(found) + 1))
    return nbad > 0 or len(found) <= 100


if __name__ == "__main__":
    sys.exit(main())
