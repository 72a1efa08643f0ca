# SPDX-License-Identifier: Apache-2.0
"""Runs `accelerate config` in a terminal and answers its questions by their words."""
import os
import pty
import re
import select
import subprocess
import sys
import time

UP, DOWN = "\x1b[A", "\x1b[B"


class Pick(str):
    """The line of a menu that has this text."""

    def keys(self, screen):
        lines = [line.strip() for line in screen[screen.index("selecting with enter"):].splitlines()[1:]]
        lines = [line for line in lines if line]
        at = next(i for i, line in enumerate(lines) if line.startswith("➔"))
        to = [line.lstrip("➔ ") for line in lines].index(str(self))
        return (DOWN if to > at else UP) * abs(to - at) + "\r"


def answers_to(text, answers):
    """The answer of the last question on the screen, and which one it is."""
    for i, (words, answer) in enumerate(answers):
        if words in text:
            return i, answer
    return None, None


def run(path, answers, common):
    """answers: (words of a question, what to type); each is asked once. Other questions get their default."""
    master, slave = pty.openpty()
    program = [sys.executable, "-W", "ignore", "-m", "accelerate.commands.accelerate_cli", "config", "--config_file", path]
    process = subprocess.Popen(program, stdin=slave, stdout=slave, stderr=slave, close_fds=True)
    os.close(slave)
    todo = list(answers) + list(common)
    screen, quiet, end = "", 0.0, time.time() + 120
    while process.poll() is None and time.time() < end:
        ready, _, _ = select.select([master], [], [], 0.2)
        if ready:
            try:
                screen += os.read(master, 65536).decode(errors="replace")
            except OSError:
                break
            quiet = time.time()
            continue
        if not screen or time.time() - quiet < 0.3:
            continue
        plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen)
        which, answer = answers_to(plain, todo)
        if which is None and not plain.strip(" \r\n-"):
            continue
        if os.environ.get("SHOW"):
            print(repr(plain[-300:]), "->", repr(answer), file=sys.stderr)
        if isinstance(answer, Pick):
            answer = answer.keys(plain)
        os.write(master, (answer if answer is not None else "\r").encode())
        if which is not None and which < len(answers):
            todo.pop(which)
            answers = answers[:which] + answers[which + 1:]
        screen = ""
    if process.poll() is None:
        process.kill()
    process.wait()
    os.close(master)
    if not os.path.exists(path):
        sys.exit(f"{path} was not written; left to answer: {answers}")


MULTI = [("machine are you using", Pick("multi-GPU"))]
COMMON = [("How many GPU", "4\r"), ("How many different machines", "1\r")]

if __name__ == "__main__":
    run("fsdp1.yaml", MULTI + [
        ("use DeepSpeed", "no\r"), ("use FullyShardedDataParallel", "yes\r"), ("FSDP version", Pick("1")),
        ("sharding strategy", Pick("SHARD_GRAD_OP")), ("offload parameters", "yes\r"),
        ("auto wrap policy", Pick("TRANSFORMER_BASED_WRAP")), ("_no_split_modules", "no\r"),
        ("comma-separated list", "LlamaDecoderLayer\r"), ("backward prefetch", Pick("BACKWARD_PRE")),
        ("state dict type", Pick("SHARDED_STATE_DICT")), ("forward prefetch", "no\r"), ("use_orig_params", "yes\r"),
        ("activation checkpointing", "yes\r"), ("mixed precision", Pick("bf16")),
    ], COMMON)
    run("fsdp2.yaml", MULTI + [
        ("use DeepSpeed", "no\r"), ("use FullyShardedDataParallel", "yes\r"), ("FSDP version", Pick("2")),
        ("resharding after forward", "no\r"), ("auto wrap policy", Pick("SIZE_BASED_WRAP")),
        ("minimum number of parameters", "1000\r"), ("mixed precision", Pick("no")),
    ], COMMON)
    if len(sys.argv) > 1:  # accelerate asks about DeepSpeed only where it is installed
        run("zero.yaml", MULTI + [
            ("use DeepSpeed", "yes\r"), ("specify a json file", "no\r"), ("ZeRO optimization stage", Pick("3")),
            ("offload optimizer", Pick("cpu")), ("offload parameters", Pick("none")),
            ("gradient accumulation", "2\r"), ("use gradient clipping", "yes\r"),
            ("gradient clipping value", "0.5\r"), ("mixed precision", Pick("bf16")),
        ], COMMON)
        with open("ds.json", "w", encoding="utf-8") as file:
            file.write('{"train_batch_size": 16, "zero_optimization": {"stage": 1}, "bf16": {"enabled": true}}')
        run("file.yaml", MULTI + [
            ("use DeepSpeed", "yes\r"), ("specify a json file", "yes\r"), ("path to the json", "ds.json\r"),
        ], COMMON)
