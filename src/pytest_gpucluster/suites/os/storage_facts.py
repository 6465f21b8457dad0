"""File systems that may hang, and storage that all nodes share."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from pytest_gpucluster.core.command_end import CommandEnd
from pytest_gpucluster.core.errors import ConfigError, NotAvailable, ProbeError
from pytest_gpucluster.core.probe import Answer, Probe, last_line
from pytest_gpucluster.core.scripts import script
from pytest_gpucluster.kit.node.file_systems import NETWORKED, error_code
from pytest_gpucluster.kit.node.own_folder import OWN_SH
from pytest_gpucluster.suites.os.facts import SECTIONS_SH, CommandSection, sections

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping, Sequence

# A file system without an answer of df within this time hangs; one deadline for all file systems together
DISK_SECONDS = 8
LATER_SECONDS = 30  # of the second reading: longer than a busy server, or a client that connects again, takes

MOST_NETWORKED = 32  # networked mounts beside the stated paths: an automounter may have mounted hundreds
_FIRST = 0.25  # of the deadline, for the df of all paths together


@dataclass(frozen=True)
class Disk:
    """Result of df on a path, in bytes and inodes. `problem`: why there is none; `hung`: df did not end.

    source: what is mounted there, as df prints it, also where the access by df has mounted it (autofs).
    """

    size: int = 0
    free: int = 0
    inodes: int = 0
    inodes_free: int = 0
    problem: str = ""
    hung: bool = False
    source: str = field(default="", compare=False)

    @property
    def error(self) -> str:
        """The code of the problem."""
        return error_code(self.problem)


def disks(paths: Iterable[str], seconds: int = DISK_SECONDS) -> Probe[dict[str, Disk]]:
    """Return the probe that runs df on every path and every networked mount within `seconds`."""
    wanted = tuple(dict.fromkeys(paths))
    quoted = " ".join(shlex.quote(absolute(path)) for path in wanted)
    ticks = seconds * 10
    command = (
        SECTIONS_SH
        + OWN_SH
        + script(
            __package__,
            "disks.sh",
            PATHS=quoted,
            NETWORKED="|".join(NETWORKED),
            MOST=MOST_NETWORKED,
            FIRST=int(ticks * _FIRST),
            TICKS=ticks,
        )
    )

    def parse(answer: Answer) -> dict[str, Disk]:
        found = sections(answer)
        also = found["also"].text.splitlines() if "also" in found else []
        paths = (*wanted, *also)
        if "all" in found:
            return read_disks(paths, found["all"].text)
        missing = [path for path in paths if path not in found]
        if missing:
            raise ProbeError(f"df: no answer about {missing[0]}")
        return {path: read_disk(found[path], seconds) for path in paths}

    return Probe(
        "disks" if seconds == DISK_SECONDS else "disks, second reading",
        command,
        parse,
        timeout=seconds + 20.0,
        by_hand=f"df -h {quoted}; df -i {quoted}",
    )


SCRATCH = ("/tmp", "/dev/shm")  # where every program writes


def read_writes(answer: Answer) -> dict[str, str]:
    """Return {folder: why no file could be written there, or ''}; ProbeError if the node is lost."""
    if answer.lost:
        raise ProbeError(answer.problem)
    return _problems(answer, SCRATCH, lambda _: "")


# `alone`: it waits on a hung file system
WRITES: Probe[dict[str, str]] = Probe(
    "writes",
    SECTIONS_SH
    + OWN_SH
    + script(__package__, "writes.sh")
    + "\n"
    + "; ".join(f"s {path} put {path}" for path in SCRATCH),
    read_writes,
    by_hand="mktemp /tmp/XXXXXX; mktemp /dev/shm/XXXXXX",
    alone=True,
)


def absolute(path: str) -> str:
    """Return a path of the cluster file; ConfigError if it is not absolute or has control characters."""
    if not path.startswith("/") or not path.isprintable():
        raise ConfigError(f"os: path {path!r} must be absolute, like /scratch")
    return path


def read_disk(part: CommandSection, seconds: int = DISK_SECONDS) -> Disk:
    """Read `df -Pk` and `df -Pi` of one path; '-': the file system does not count inodes."""
    if part.end.hung:
        return Disk(problem=f"no answer within {seconds} s", hung=True)
    if part.rc != 0:
        return Disk(problem=last_line(part.text) or f"df: exit {part.rc}")
    return read_disks(("",), part.text)[""]


def read_disks(paths: Sequence[str], text: str) -> dict[str, Disk]:
    """Read `df -Pk` and `df -Pi` of these paths, which have one row per path in this order."""
    rows = re.findall(r"^(\S*).*?\s(\d+|-)\s+(\d+|-)\s+(-?\d+|-)\s+(?:\d+%|-)\s+/", text, re.MULTILINE)
    if len(rows) != 2 * len(paths):
        raise ProbeError(f"df: {len(rows)} rows for {len(paths)} paths: {last_line(text)[:80]!r}")
    counts = [tuple(0 if x == "-" else int(x) for x in row[1:]) for row in rows]
    return {
        path: Disk(size * 1024, free * 1024, inodes, inodes_free, source=row[0])
        for path, row, (size, _, free), (inodes, _, inodes_free) in zip(
            paths, rows, counts[: len(paths)], counts[len(paths) :], strict=False
        )
    }


@dataclass(frozen=True)
class SharedFiles:
    """One file per shared folder: written by one node, read by all, removed by its writer.

    `token` is unique to the run; it is the name and the content, so that no node has the name in a cache.
    """

    folders: tuple[str, ...]
    token: str

    def path(self, folder: str) -> str:
        """Return the path of the file in a folder."""
        return f"{absolute(folder).rstrip('/')}/.gpucluster-{self.token}"

    def write_command(self) -> str:
        """Return the command of the writer, which never overwrites a file (set -C)."""
        return (
            SECTIONS_SH
            + "set -C; umask 022; "
            + self._each("put", 'printf "%s\\n" "$2" >"$1"', shlex.quote(self.token))
        )

    def read_command(self) -> str:
        """Return the command of all nodes. It waits some seconds for the file, since NFS caches folders."""
        body = 'i=0; until cat "$1"; do i=$((i+1)); [ "$i" -lt 4 ] || return 1; sleep 1; done'
        return SECTIONS_SH + self._each("get", body)

    def remove_command(self, written: Iterable[str]) -> str:
        """Return the command that removes the files of these folders."""
        return "rm -f " + " ".join(shlex.quote(self.path(folder)) for folder in written)

    def _each(self, name: str, body: str, second: str = "") -> str:
        calls = (f"s {shlex.quote(folder)} {name} {shlex.quote(self.path(folder))} {second}" for folder in self.folders)
        return f"{name}() {{ {body}; }}; " + "; ".join(calls)


@dataclass(frozen=True)
class SharedFolder:
    """Result of one shared folder on one node: the problems of writing and reading, '' if there are none."""

    writer: str
    write_problem: str = ""
    read_problem: str = ""


class FleetChannel(Protocol):
    """The part of the fleet's channel that shared files use."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes, in task order."""

    @property
    def lost(self) -> Container[str]:
        """The nodes that do not answer."""

    def ask(self, command: str, *, timeout: float = ...) -> dict[str, Answer]:
        """Run a command on all nodes."""

    def ask_node(self, node: str, command: str, *, timeout: float = ..., fresh: bool = ...) -> Answer:
        """Run a command on one node; `fresh`: only there, and not from the cache."""


@dataclass(frozen=True)
class SharedResult:
    """Results of the shared files on all nodes."""

    files: SharedFiles
    writer: str
    written: Mapping[str, str]
    answers: Mapping[str, Answer]

    def on(self, node: str) -> dict[str, SharedFolder]:
        """Return {folder: result on this node}; NotAvailable if the node did not answer."""
        if not self.files.folders:
            return {}
        if node not in self.answers or self.answers[node].lost:
            raise NotAvailable("the node did not answer when the shared files were read")
        seen = read_seen(self.answers[node], self.files)
        return {folder: SharedFolder(self.writer, self.written[folder], seen[folder]) for folder in self.files.folders}


SHARED_SECONDS = 20.0


def write(fleet: FleetChannel, files: SharedFiles) -> tuple[str, dict[str, str]]:
    """Write the files on the first node that answers; return its name and {folder: problem or ''}."""
    nodes = [node for node in fleet.nodes if node not in fleet.lost]
    if not files.folders or not nodes:
        return "", dict.fromkeys(files.folders, "no node to write it")
    answer = fleet.ask_node(nodes[0], files.write_command(), timeout=SHARED_SECONDS, fresh=True)
    return nodes[0], read_written(answer, files)


def read(fleet: FleetChannel, files: SharedFiles, writer: str, written: Mapping[str, str]) -> SharedResult:
    """Read the files on all nodes."""
    some = any(not problem for problem in written.values())
    answers = fleet.ask(files.read_command(), timeout=SHARED_SECONDS) if some else {}
    silent = {node: Answer(node, None, problem="nothing was written") for node in fleet.nodes}
    return SharedResult(files, writer, written, answers or silent)


def remove(fleet: FleetChannel, files: SharedFiles, writer: str, written: Mapping[str, str]) -> None:
    """Remove the files that were written: another name is not of this run."""
    if done := [folder for folder, problem in written.items() if not problem]:
        fleet.ask_node(writer, files.remove_command(done), timeout=SHARED_SECONDS, fresh=True)


def read_written(answer: Answer, files: SharedFiles) -> dict[str, str]:
    """Return {folder: why its file could not be written, or ''}."""
    return _problems(answer, files.folders, lambda _: "")


def read_seen(answer: Answer, files: SharedFiles) -> dict[str, str]:
    """Return {folder: why one node could not read its file as it was written, or ''}."""

    def other(text: str) -> str:
        seen = last_line(text)
        return "" if seen == files.token else f"other content: {seen[:40]!r}"

    return _problems(answer, files.folders, other)


def _problems(answer: Answer, paths: Iterable[str], judge: Callable[[str], str]) -> dict[str, str]:
    """Return {path: its problem or ''}; if a file system hangs, the answer ends before its section."""
    found = sections(answer) if answer.rc is not None else _complete(answer)
    return {path: _problem_of(found[path], judge) if path in found else answer.problem or "no answer" for path in paths}


def _problem_of(part: CommandSection, judge: Callable[[str], str]) -> str:
    return judge(part.text) if part.rc == 0 else last_line(part.text) or f"exit {part.rc}"


def _complete(answer: Answer) -> Mapping[str, CommandSection]:
    """Return the complete sections of an answer that was cut off."""
    whole = re.findall("\x1e([^\x1e\n]*)\n([^\x1e]*)\x1e=(\\d+)\n", answer.out)
    return {name: CommandSection(text, CommandEnd.of(rc)) for name, text, rc in whole}
