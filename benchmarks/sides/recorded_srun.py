"""Stands for srun of the fleet channel: as many nodes as SLURM_JOB_NODELIST's file has, and answers of recorded ones.

A question to all nodes is run once on each of two virtual nodes of a sandbox, and their answers are given for all
nodes: the first's, and on every hundredth node the second's, which has a fault. Names, UUIDs and serial numbers are
made each node's own. The frames are those of the agent; nothing of the plugin is replaced.

The environment: RECORDED_NODES (file: a name a line), RECORDED_STATE (state folder of the sandbox), RECORDED_PATH.
"""

from __future__ import annotations

import base64
import os
import queue
import re
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path

BAD_EVERY = 100
PIECE = 700  # characters of a frame, as in the agent
ESCAPE, SHORT = re.compile(rb"\\(?:0([0-7]{3})|(.))"), {b"n": b"\n", b"t": b"\t"}  # of printf %b
OWN = re.compile(rb"(?P<uuid>GPU-[\da-f]{8}-)[\da-f]{4}|(?P<serial>\b1\d{8})\d{4}\b|\bgpu0[12]\b")


def plain(form: str, code: str) -> str:
    """Return the command of a request."""
    code = code.removesuffix("\n").removesuffix("|")
    if form == "p":
        return code
    raw = ESCAPE.sub(lambda it: bytes([int(it[1], 8)]) if it[1] else SHORT.get(it[2], it[2]), code.encode())
    return raw.decode("utf-8", "surrogateescape")


def ask(model: str, command: str) -> tuple[bytes, bytes, int]:
    """Run a command with the tools and files of a virtual node."""
    state = Path(os.environ["RECORDED_STATE"])
    env = {
        **os.environ,
        "PATH": f"{state / 'simbin'}:{os.environ['RECORDED_PATH']}",
        "SLURMD_NODENAME": model,
        "SLURM_SANDBOX_NODE": str(state / "nodes" / model),
    }
    done = subprocess.run(["sh", "-c", command], env=env, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    return done.stdout, done.stderr, done.returncode


class Template:
    """An answer with places for what is each node's own."""

    def __init__(self, text: bytes) -> None:
        self.parts: list[bytes] = []
        self.places: list[re.Match[bytes]] = []
        end = 0
        for found in OWN.finditer(text):
            self.parts.append(text[end : found.start()])
            self.places.append(found)
            end = found.end()
        self.rest = text[end:]

    def of(self, task: int, name: str) -> bytes:
        """Return the answer of one node."""
        pieces = []
        for part, place in zip(self.parts, self.places, strict=True):
            pieces.append(part)
            if place["uuid"]:
                pieces.append(b"%s%04x" % (place["uuid"], task))
            elif place["serial"]:
                pieces.append(b"%s%04d" % (place["serial"], task))
            else:
                pieces.append(name.encode())
        return b"".join([*pieces, self.rest])


class Replay:
    """The nodes."""

    def __init__(self, nonce: str) -> None:
        self.nonce = nonce
        self.names = Path(os.environ["RECORDED_NODES"]).read_text().split()
        self.out, self.lock = sys.stdout.buffer, threading.Lock()

    def frames(self, task: int, number: str, kinds: str, text: bytes) -> None:
        """Write one stream of an answer."""
        head, data = f"{task}: {self.nonce} {number}", base64.b64encode(text).decode()
        pieces = [data[at : at + PIECE] for at in range(0, len(data), PIECE)]
        lines = [f"{head} {kinds[0]} {index} {len(piece)} {piece}\n" for index, piece in enumerate(pieces)]
        lines.append(f"{head} {kinds[1]} {len(pieces)} 0\n")
        self.out.write("".join(lines).encode())

    def answer(self, number: str, who: str, command: str) -> None:
        """Answer for all nodes that are asked."""
        asked = range(len(self.names)) if who == "*" else map(int, filter(None, who.split(",")))

        @cache
        def recorded(model: str) -> tuple[Template, Template, int]:
            out, err, status = ask(model, command)
            return Template(out), Template(err), status

        for task in asked:
            out, err, status = recorded("gpu02" if task % BAD_EVERY == BAD_EVERY - 1 else "gpu01")
            name = self.names[task]
            with self.lock:
                self.frames(task, number, "oO", out.of(task, name))
                self.frames(task, number, "eE", err.of(task, name))
                self.out.write(f"{task}: {self.nonce} {number} X {status}\n".encode())
        self.out.flush()

    def serve(self) -> None:
        """Say that the agents are there, and answer until there are no more questions."""
        for task, name in enumerate(self.names):
            self.out.write(f"{task}: {self.nonce} 0 H {task} b {name}\n".encode())
        self.out.flush()
        questions: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self.listen, args=(questions,), daemon=True).start()
        while (line := questions.get()) is not None:
            number, who, _, _, form, code = line.split(" ", 5)
            self.answer(number, who, plain(form, code))

    def listen(self, questions: queue.SimpleQueue[str | None]) -> None:
        """Give signs of life at once, as agents do that are at work; questions wait for their turn."""
        for line in sys.stdin:
            number, who, _ = line.split(" ", 2)
            if number != "0":
                questions.put(line)
            elif who == "*":
                signs = "".join(f"{task}: {self.nonce} 0 P\n" for task in range(len(self.names)))
                with self.lock:
                    self.out.write(signs.encode())
                    self.out.flush()
        questions.put(None)


if __name__ == "__main__":
    Replay(sys.argv[-1]).serve()
