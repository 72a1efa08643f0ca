# SPDX-License-Identifier: Apache-2.0
"""Commands of the scripts next to this one: one as arguments, or many at once, as a test collects them (tests/lib/python.sh)."""
import contextlib
import io
import sys


def run(**commands):
    """Calls the command that the arguments name. "each" reads one a line: "COMMAND ARGUMENT... # TEXT" becomes a TAP line
    with the text, which fails if the command raises; a command without a text prints its own."""
    name, *arguments = sys.argv[1:]
    if name != "each":
        return commands[name](*arguments)
    for line in sys.stdin:
        words, _, text = line.partition("#")
        name, *arguments = words.split()
        text = text.strip()
        printed, why = io.StringIO(), None
        try:
            with contextlib.redirect_stdout(printed) if text else contextlib.nullcontext():
                commands[name](*arguments)
        except Exception as e:  # others follow
            why = f"{type(e).__name__}: {str(e)[:900]}"
        if text or why:
            print(f"{'not ok' if why else 'ok'} - {text or words.strip()}")
        for remark in (printed.getvalue() + (why or "")).splitlines():
            print(f"# {remark}")
        sys.stdout.flush()
