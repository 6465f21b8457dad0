"""The evidence of a node: its answer to capture.sh, and the files that are made of it."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import math
import re
import time
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_gpucluster.core.command_end import STATUS, CommandEnd
from pytest_gpucluster.core.errors import GpuClusterError
from pytest_gpucluster.core.probe import Answer, last_line
from pytest_gpucluster.core.sanitize import one_line
from pytest_gpucluster.core.secure_tempfile import Folder
from pytest_gpucluster.evidence.tools import BUG_REPORT, INVENTORY, OWNERS, TEXT, file_name
from pytest_gpucluster.kit.gpu.diagnostics import owner
from pytest_gpucluster.kit.parts.inventory import PARTS
from pytest_gpucluster.report.machine.atomic_write import harmless
from pytest_gpucluster.report.run_model import EVIDENCE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pytest_gpucluster.core.part import InstalledPart

UNPACKED = 64 << 20  # bytes of a bug report that are read
_NO_END = "absent", "late", "unknown"
_BLOCK = 1 << 15
_BETWEEN = re.compile(r"(?<=[^:=\s])\n(?=[\w\[])")  # lines of which the second does not continue the first


class ToolOutput(NamedTuple):
    """What one tool printed, and how it ended: a status, deadline, absent, late (no time was left), unknown."""

    name: str
    data: bytes
    end: str
    seconds: float

    @property
    def problem(self) -> str:
        """Why the tool gave less than it should, '' where it gave all."""
        if self.end in _NO_END:
            return {"absent": "not installed", "late": "not run: no time was left"}.get(self.end, "its end is unknown")
        full = BUG_REPORT if ".log" in self.name else TEXT
        if len(self.data) >= full:
            return f"cut at {full >> 20} MiB"
        if self.end == "0":
            return "" if self.data.strip() or self.name == OWNERS else "printed nothing"
        words = one_line(harmless(last_line(self.data.decode(errors="replace"))), 120)
        return f"{words or 'no message'} ({CommandEnd.of(self.end)})"


class Capture(NamedTuple):
    """The evidence of a node. `problem`: why there is none, or not all of it."""

    node: str
    sections: tuple[ToolOutput, ...] = ()
    problem: str = ""


def read_capture(answer: Answer, mark: str) -> Capture:
    """Read an answer to `command_for`; what was printed before a tool hung is kept."""
    pattern = rf"\n{mark} begin (\S+)\n(.*?)\n{mark} end ({STATUS}|{'|'.join(_NO_END)}) (-?\d+)\n"
    found = re.findall(pattern.encode(), answer.stdout, re.DOTALL)
    sections = tuple(
        ToolOutput(file_name(name.decode(errors="replace")), data, end.decode(), int(hundredths) / 100)
        for name, data, end, hundredths in found
    )
    problem = ""
    if f"\n{mark} whole\n".encode() not in answer.stdout:
        begun = re.findall(rf"\n{mark} begin (\S+)\n".encode(), answer.stdout)
        last = f" in {file_name(begun[-1].decode(errors='replace'))}" if len(begun) > len(found) else ""
        why = answer.problem or (
            "the answer was cut" if answer.truncated else last_line(answer.err) or "it ended early"
        )
        problem = one_line(harmless(f"{why}{last}"))
    return Capture(answer.node, sections, problem)


def stored(capture: Capture, root: Path, group: int | None = None, *, until: float = math.inf) -> dict[str, Any]:
    """Write the files of a node into `evidence/NODE` below a folder, without secrets; return the fields of the event `evidence`.

    `until`: the monotonic time after which no packed file is read for secrets any more, and none is stored. OSError where
    the files cannot be written.
    """
    files, missing = [], {}
    with (
        contextlib.closing(Folder(root, create=True, group=group)) as run,
        contextlib.closing(run.folder(EVIDENCE, create=True)) as above,
        contextlib.closing(above.folder(file_name(capture.node), create=True)) as folder,
    ):
        for section in capture.sections:
            if why := section.problem:
                missing[section.name] = why
            if section.name.endswith(".gz") and time.monotonic() > until:
                missing[section.name] = "not stored: no time was left to remove secrets from it"
                continue
            if not section.data.strip():
                continue
            name, data = _harmless_file(section)
            folder.replace(name, [data])
            files.append(
                {
                    "name": name,
                    "bytes": len(data),
                    "sha256": hashlib.sha256(data).hexdigest(),
                    "end": section.end,
                    "seconds": section.seconds,
                }
            )
    return {
        "node": capture.node,
        "folder": f"{EVIDENCE}/{file_name(capture.node)}",
        "files": files,
        "missing": missing,
        "problem": capture.problem,
        "owner": _owner(capture),
        "parts": [it.as_dict() for it in _inventory(capture)],
    }


def _owner(capture: Capture) -> str:
    return owner(next((it.data for it in capture.sections if it.name == OWNERS), b"").decode(errors="replace"))


def _inventory(capture: Capture) -> Sequence[InstalledPart]:
    """Return the parts of the node, if this capture has read them."""
    data = next((it.data for it in capture.sections if it.name == INVENTORY), b"")
    with contextlib.suppress(GpuClusterError):
        # a list that was cut has its first parts
        return PARTS.parse(Answer(capture.node, 0, data + b"\nend\n")).parts if data else ()
    return ()


def _harmless_file(section: ToolOutput) -> tuple[str, bytes]:
    """Return name and content of a section's file: text without secrets, packed if the tool had packed it."""
    if not section.name.endswith(".gz"):
        name = section.name if section.name.endswith(".log") else f"{section.name}.txt"
        return name, _harmless_bytes(section.data)
    return section.name, gzip.compress(_harmless_bytes(_unpacked(section.data)), mtime=0)


def _unpacked(data: bytes) -> bytes:
    """Return what can be read of a gzip stream, which may be cut, up to UNPACKED bytes."""
    stream = zlib.decompressobj(wbits=31)
    with contextlib.suppress(zlib.error):
        return stream.decompress(data, UNPACKED)
    return b""


def _harmless_bytes(data: bytes) -> bytes:
    return "".join(map(harmless, _blocks(data.decode(errors="replace")))).encode(errors="replace")


def _blocks(text: str) -> Iterator[str]:
    """Yield a text in blocks of lines such that no secret spans two: most blocks have no word of a secret, which is fast to see."""
    if "-----BEGIN" in text:
        yield text
        return
    done = 0
    for end in _BETWEEN.finditer(text):
        if end.end() - done >= _BLOCK:
            yield text[done : end.end()]
            done = end.end()
    yield text[done:]
