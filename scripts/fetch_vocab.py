#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fetches real vocabularies and chat templates for the tests from PyPI, once, into a folder:

    scripts/fetch_vocab.py build/vocab

    models/     of the source package of llama-cpp-python: ggml-vocab-*.gguf, templates/*.jinja
    trl/        chat templates of TRL
"""
import html
import io
import os
import re
import shutil
import sys
import tarfile
import tempfile
import urllib.parse
import urllib.request
import zipfile

FILES = {"llama-cpp-python": "llama_cpp_python-0.3.36.tar.gz", "trl": "trl-1.16.0-py3-none-any.whl"}


def fetch(name):
    """A package's file by the simple index, which every mirror has."""
    page = "https://pypi.org/simple/%s/" % name
    with urllib.request.urlopen(page) as answer:
        links = re.findall(r'href="([^"#]*)', answer.read().decode())
    url = next(link for link in links if link.endswith("/" + FILES[name]))
    with urllib.request.urlopen(urllib.parse.urljoin(page, html.unescape(url))) as answer:
        return io.BytesIO(answer.read())


def put(folder, name, data):
    path = os.path.join(folder, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as out:
        out.write(data)


def main():
    target = sys.argv[1]
    if os.path.exists(target):
        return
    os.makedirs(os.path.dirname(os.path.abspath(target)), exist_ok=True)
    scratch = tempfile.mkdtemp(dir=os.path.dirname(os.path.abspath(target)))
    try:
        with tarfile.open(fileobj=fetch("llama-cpp-python")) as archive:
            for member in archive:
                parts = member.name.split("/vendor/llama.cpp/models/")
                if len(parts) == 2 and member.isfile():
                    put(scratch, "models/" + parts[1], archive.extractfile(member).read())
        with zipfile.ZipFile(fetch("trl")) as archive:
            for name in archive.namelist():
                if name.endswith(".jinja"):
                    put(scratch, "trl/" + os.path.basename(name), archive.read(name))
        os.rename(scratch, target)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise


main()
