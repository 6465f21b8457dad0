"""Modules and conda environments of a node: one script for each, and the reader of its output. Pure.

Output of `module` is that of Lmod 8.6, 8.7 and 9.2 and Tcl Environment Modules 5.2, seen here; LOADEDMODULES means the same in all
releases (module(1)), while exit codes do not: 3.2 ends with 0 after most errors.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from math import ceil
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from pytest_gpucluster.core import safe_json
from pytest_gpucluster.core.command_end import LIMITED_SH, STATUS, CommandEnd
from pytest_gpucluster.core.errors import NotAvailable, ProbeError
from pytest_gpucluster.core.probe import NOT_EXECUTABLE, NOT_FOUND, Answer, Probe, last_line
from pytest_gpucluster.core.scripts import script

if TYPE_CHECKING:
    from pytest_gpucluster.suites.software.config import CondaConfig, ModulesConfig, SoftwareConfig

GRACE = 15.0  # seconds until the channel ends what timeout(1) could not kill
_MARK = re.compile(rf"@@software (\w{{1,20}}) (\d{{1,9}}|-) ({STATUS}) (-?\d{{1,12}})")


@dataclass(frozen=True)
class CommandStep:
    """One command of the script. `rc`: exit status; `seconds`: its wall time; `text`: stdout and stderr."""

    name: str
    entry: int
    rc: int
    seconds: float
    text: str


@dataclass(frozen=True)
class ScriptResult:
    """The steps of a script. `end`: of the whole; `tail`: output of a step that did not end."""

    steps: tuple[CommandStep, ...]
    end: CommandEnd
    tail: str = ""

    def of(self, entry: int, name: str) -> tuple[CommandStep, ...]:
        """Return the steps of this name for an entry, in their order."""
        return tuple(step for step in self.steps if step.entry == entry and step.name == name)

    def text(self, entry: int, name: str) -> str:
        """Return the output of the last such step; '' if there is none."""
        return next((step.text for step in reversed(self.of(entry, name))), "")

    def loaded(self, entry: int, name: str) -> tuple[str, ...]:
        """Return the modules that were loaded at this step, in their order."""
        line = last_line(self.text(entry, name))  # messages of the modulefiles come before
        return tuple(filter(None, line.removeprefix("LOADEDMODULES=").split(":")))

    @property
    def hung(self) -> int | None:
        """The entry that did not end before the time limit; None if all ended."""
        begun = [step.entry for step in self.steps if step.name == "begin"]
        over = {step.entry for step in self.steps if step.name == "end"}
        return begun[-1] if self.end.hung and begun and begun[-1] not in over else None

    def unknown(self, entry: int) -> str:
        """Return why an entry has no result; '' if it has one."""
        killed = (step for step in self.steps if step.entry == entry and CommandEnd(step.rc).signal)
        if step := next(killed, None):
            return f"{step.name}: {CommandEnd(step.rc)}"
        if self.of(entry, "end"):
            return ""
        if self.end.hung:
            return "the time limit was reached before"
        return f"the shell of the commands: {self.end}: {last_line(self.tail) or 'no message'}"


def read_steps(answer: Answer) -> ScriptResult:
    """Return the steps; NotAvailable without bash or timeout, ProbeError without the last line of the script."""
    steps: list[CommandStep] = []
    text: list[str] = []
    ended: CommandEnd | None = None
    for line in answer.out.splitlines():
        if match := _MARK.fullmatch(line):
            if match[2] == "-":
                ended = CommandEnd.of(match[3])
                break
            known = "\n".join(text).strip("\n")
            seconds = max(0, int(match[4])) / 1000
            steps.append(CommandStep(match[1], int(match[2]), int(match[3]), seconds, known))
            text = []
        else:
            text.append(line)
    tail = "\n".join(text)
    if ended is None:
        raise ProbeError(f"the output has no end: {last_line(answer.out) or 'it is empty'}")
    if ended.status in (NOT_FOUND, NOT_EXECUTABLE) and not steps:
        raise NotAvailable(last_line(answer.err) or last_line(tail) or "bash or timeout cannot be run")
    return ScriptResult(tuple(steps), ended, tail)


def read_packages(text: str) -> dict[str, str]:
    """Return {package: version} of `conda list --json`; ProbeError with conda's message where it has no list."""
    if not text.strip():
        raise ProbeError("conda list printed nothing")
    try:
        found = safe_json.loads(text)
    except ValueError as error:
        raise ProbeError(f"conda list: no JSON: {last_line(text)}") from error
    if isinstance(found, dict):
        message = str(found.get("message") or found.get("error") or "no list of packages")
        if message.startswith("No packages match"):  # conda 25 and later; [] before
            return {}
        raise ProbeError(message)
    if not isinstance(found, list):
        raise ProbeError("conda list: the answer is no list")
    try:
        return {str(one["name"]).lower(): str(one["version"]) for one in found}
    except (KeyError, TypeError) as error:
        raise ProbeError(f"conda list: a package is not understood ({error!r})") from error


def modules_probe(config: ModulesConfig, find: str, timeout: float) -> Probe[ScriptResult]:
    """Return the probe of all module commands; `find` defines `module`. Entries: 0 the command itself, then `load`."""
    lines = [find, "begin 0", "timed version module --version", "end"]
    for number, item in enumerate(config.load, 1):
        names = item.split()
        outputs = [f"output {shlex.quote(command)}" for command in config.output.get(item, ())]
        body = [f"begin {number}", f"load_all {shlex.join(names)}", *outputs]
        lines.append("; ".join(["(" + body[0], *body[1:], f"unload_all {shlex.join(names[::-1])}", "end )"]))
    return _probe("environment modules", lines, timeout, "module avail; module load NAME; module list")


def conda_probe(config: CondaConfig, timeout: float) -> Probe[ScriptResult]:
    """Return the probe of all conda commands. Entries: 0 conda itself, then the environments."""
    conda = shlex.quote(config.command)
    lines = ["begin 0", f"timed version {conda} --version", "end"]
    for number, (name, wanted) in enumerate(config.environments.items(), 1):
        option = "-p" if name.startswith("/") else "-n"
        pattern = f"^({'|'.join(map(re.escape, wanted.packages))})$" if wanted.packages else ""
        words = shlex.join((config.command, name, option, pattern))
        lines.append(f"(begin {number}; environment {words}; end )")
    return _probe("conda environments", lines, timeout, "conda env list; conda run -n NAME python --version")


def probes_of(config: SoftwareConfig) -> tuple[Probe[ScriptResult], ...]:
    """Return the probes of the section."""
    modules = [modules_probe(config.modules, config.find_module, config.timeout)] if config.modules else []
    return (*modules, *([conda_probe(config.conda, config.timeout)] if config.conda else []))


def _probe(name: str, lines: list[str], timeout: float, repeat: str) -> Probe[ScriptResult]:
    program = "\n".join((script(__package__, "payload.sh"), *lines, "true"))
    limited = f"{LIMITED_SH}limited {ceil(timeout)} bash -c {shlex.quote(program)} 2>&1 </dev/null"
    command = f"{limited}; printf '\\n@@software ended - %s 0\\n' \"$ended\""
    return Probe(name, command, read_steps, timeout=timeout + GRACE, by_hand=repeat, alone=True)


def is_environment(prefix: str, name: str) -> bool:
    """Return whether a prefix is that of the environment; base may have any."""
    return bool(prefix) and name in (prefix, PurePosixPath(prefix).name, "base")
