"""Make each failure of docs/failures.md in a sandbox, write what the run prints into the page, and repair it.

python tools/worked_failures.py [CHECK...]     # rewrites docs/failures.md; all of them take three to six minutes

A section is made by what stands in it: `gpucluster sandbox fault` and `pytest` of its first block of shell, the keys of a
first block of YAML, which go behind those of the sandbox's cluster file, and those of a second one, which repair them. Where
there is none, the repair is `gpucluster sandbox heal`. The printed `rerun:` must then end with exit status 0.
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "slurm-sandbox/tests")]

from sandbox_helpers import environment, sandbox_folder  # found by the path above

from pytest_gpucluster.sandbox import Sandbox

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = ROOT / "docs" / "failures.md"
NODES = 4
DEADLINE = 300  # seconds of one run
# the interpreter that the page names -> the one of this checkout
FRAMEWORKS = ("/opt/frameworks/bin/python", str(ROOT / ".cache/frameworks/bin/python"))
OUTPUT = re.compile(r"<!-- output: (?P<check>[\w.]+) -->\n```\n(?P<text>.*?)```\n", re.DOTALL)
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Failure:
    """One section of the page."""

    title: str
    check: str
    faults: tuple[tuple[str, ...], ...]  # kind, nodes, options
    pytest: tuple[str, ...]
    keys: str
    repaired: str

    @classmethod
    def read(cls, section: str) -> Failure:
        """Read a section; ValueError for one that lacks a part."""
        title = section.partition("\n")[0]
        output = OUTPUT.search(section)
        blocks = BLOCK.findall(section)
        shell = [shlex.split(line) for kind, text in blocks if kind == "sh" for line in text.splitlines()]
        yaml = [text for kind, text in blocks if kind == "yaml"]
        faults = tuple(tuple(words[3:]) for words in shell if words[:3] == ["gpucluster", "sandbox", "fault"])
        runs = [tuple(words[1:]) for words in shell if words[0] == "pytest"]
        if not output or not runs or not (faults or len(yaml) > 1):
            raise ValueError(f"{title}: needs an output, a run, and a fault or two blocks of YAML")
        broken, repaired = (*yaml, "", "")[:2]
        return cls(title, output["check"], faults, runs[0], broken, repaired)


def sections(page: str) -> list[str]:
    """Return the sections with an output."""
    return [section for section in page.split("\n## ") if OUTPUT.search(section)]


def filled(page: str, outputs: dict[str, str]) -> str:
    """Return the page with {check: output}."""
    return OUTPUT.sub(
        lambda found: f"<!-- output: {found['check']} -->\n```\n{outputs.get(found['check'], found['text'])}```\n", page
    )


class Site:
    """A folder with the sandbox as the cluster `prod`."""

    def __init__(self, sandbox: Sandbox, folder: Path) -> None:
        self.sandbox, self.folder = sandbox, folder
        (folder / "clusters").mkdir()

    def made(self, failure: Failure) -> str:
        """Make a failure, repair it, and return what the run printed of it; AssertionError where anything is different."""
        self._configure(failure.keys)
        for kind, nodes, *options in failure.faults:
            self.sandbox.fault(kind, nodes, **dict(option.split("=", 1) for option in options))
        try:
            rc, text = self._pytest(*failure.pytest)
        finally:
            self.sandbox.heal()
        shown = next(blocks_of(text, failure.check), None)
        assert rc == 1, f"{failure.title}: exit status {rc}: {text[-2000:]}"
        assert shown, f"{failure.title}: no failure of {failure.check}: {text[-3000:]}"
        self._configure(failure.repaired)
        again = re.findall(r"^rerun: +pytest (.*)$", shown, re.MULTILINE)
        assert again, shown
        rc, text = self._pytest(*shlex.split(again[-1]))
        assert rc == 0, f"{failure.title}: repaired, and exit status {rc}: {text[-2000:]}"
        return shown

    def _configure(self, keys: str) -> None:
        text = f"{self.sandbox.cluster_file.read_text()}\n{keys.replace(*FRAMEWORKS)}"
        (self.folder / "clusters" / "prod.yaml").write_text(text)

    def _pytest(self, *words: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--evidence=off", *words],
            cwd=self.folder,
            env={**environment(**self.sandbox.env), "COLUMNS": "100"},
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
        )
        text = done.stdout.replace(f"env SLURM_CONF={self.sandbox.env['SLURM_CONF']} ", "")
        text = text.replace("note:         SIMULATED hardware (sandbox)\n", "").replace(*FRAMEWORKS[::-1])
        return done.returncode, text.replace(str(self.sandbox.cluster_file.parent), "") + done.stderr


def blocks_of(text: str, check: str) -> Iterator[str]:
    """Yield each printed failure of a check, with its headline."""
    lines = text.splitlines(keepends=True)
    starts = [number for number, line in enumerate(lines) if re.match(r"_+ .* _+$|={10,}", line)]
    for start, end in itertools.pairwise(starts):
        if re.match(rf"{re.escape(check)}[ :]", lines[start + 1]):
            yield "".join(lines[start:end])


def outputs(failures: list[Failure]) -> dict[str, str]:
    """Return {check: what a run printed} of all failures, made one after the other in one sandbox."""
    with sandbox_folder() as folder:
        sandbox = Sandbox(folder / "s")
        sandbox.up(nodes=NODES)
        site = Site(sandbox, folder)
        return {failure.check: site.made(failure) for failure in failures}


def main() -> None:
    page = PAGE.read_text()
    failures = [Failure.read(section) for section in sections(page)]
    chosen = [failure for failure in failures if failure.check in sys.argv[1:] or not sys.argv[1:]]
    PAGE.write_text(filled(page, outputs(chosen)))


if __name__ == "__main__":
    os.environ["PATH"] += ":/usr/sbin"
    main()
