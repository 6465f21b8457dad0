"""How sshd of a node admits users: the PAM stack with pam_slurm_adopt, as its page of Slurm's documentation requires."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpucluster.core.errors import ProbeError
from pytest_gpucluster.core.probe import Probe, text_of
from pytest_gpucluster.core.scripts import script

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pytest_gpucluster.core.probe import Answer

ADOPT = "pam_slurm_adopt.so"
_SERVICE = "sshd"
MAX_DEPTH = 16  # of included files
_LINE = re.compile(r"\s*-?(\w+)\s+(\[[^\]]*\]|\S+)\s+(\S+)")
_DEBIAN = re.compile(r"\s*@include\s+(\S+)")


@dataclass(frozen=True)
class PamFacts:
    """PAM of sshd. `readable`: the node has a file for sshd. `adopts`: the module as the account stack names it, or ''.

    `module`: the file of the module, '' if there is none; `use_pam`: yes, no, or '' if unknown.
    """

    readable: bool
    adopts: str
    module: str
    use_pam: str


def read_pam(answer: Answer) -> PamFacts:
    """Read the answer."""
    files: dict[str, list[str]] = {}
    found: dict[str, list[str]] = {}
    for line in text_of(answer).splitlines():
        key, bar, value = line.partition("|")
        if not bar:
            continue
        path, colon, text = value.partition(":")
        if key == "pam" and colon:
            files.setdefault(path, []).append(text)
        else:
            found.setdefault(key, []).append(value.strip())
    if "usepam" not in found:
        raise ProbeError("the end of the answer is missing")
    adopts = next((module for module in _account(files) if module.rpartition("/")[2] == ADOPT), "")
    modules = found.get("module", [])
    return PamFacts(
        readable="sshd" in found,
        adopts=adopts,
        module=next((path for path in modules if not adopts.startswith("/") or path == adopts), ""),
        use_pam="".join(found["usepam"][0].lower().split()[1:2]),
    )


def _account(files: Mapping[str, list[str]]) -> Iterator[str]:
    """Yield the modules of the account stack of sshd, in order, with the files that it includes (pam.d(5))."""
    pending = [(line, 0) for line in reversed(files.get(_SERVICE, []))]
    opened = {_SERVICE}
    while pending:
        line, depth = pending.pop()
        debian, found = _DEBIAN.match(line), _LINE.match(line)
        if debian:
            included = debian[1]
        elif found and found[1].lower() == "account":
            included = found[3] if found[2].lower() in ("include", "substack") else ""
            if not included:
                yield found[3]
        else:
            continue
        included = included.rpartition("/")[2]
        if included and included not in opened and depth < MAX_DEPTH:
            opened.add(included)
            pending += [(one, depth + 1) for one in reversed(files.get(included, []))]


PAM = Probe(
    "PAM of sshd",
    script(__package__, "pam.sh"),
    read_pam,
    root=True,
    by_hand="cat /etc/pam.d/sshd; sshd -T | grep -i usepam",
)
