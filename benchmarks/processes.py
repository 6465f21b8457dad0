"""How many processes a gate and the suites start on a node: a count, which does not depend on the speed of the machine.

    python benchmarks/processes.py [--suites 'os or slurm or gpu or fabric'] [--tree]

strace(1) follows the second of two nodes of a sandbox: what a run does once for all nodes, on the first one, is not counted.
A process is a fork; threads are none. Those that a simulated tool starts are counted apart: the real tool is one process.
--tree also prints each process below its parent, with the number of ours in its tree.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from stamp import stamp

from pytest_gpucluster.sandbox import Sandbox

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SUITES = Path(__file__).parent.parent / "suites"
FOLLOW = ("strace", "-f", "-s", "160", "-e", "trace=execve,clone,clone3,fork,vfork", "-o")
ATTACHED = 1.0  # seconds until strace follows a daemon
_CALL = re.compile(r"(\d+) +(?:<\.\.\. )?(\w+)(?: resumed>|\()(.*)")
_PROGRAM = re.compile(r'"([^"]*)"')


class Processes:
    """The processes of a log of strace: {pid: parent} in their order, and what each one ran."""

    def __init__(self, lines: Iterable[str], simulated: Path) -> None:
        self.parents: dict[int, int] = {}
        self.programs: defaultdict[int, list[str]] = defaultdict(list)
        self._simulated = str(simulated)
        self._below: set[int] = set()  # started by a simulated tool
        self._tools: set[int] = set()
        unfinished: dict[int, str] = {}
        for line in lines:
            if not (match := _CALL.match(line)):
                continue
            pid, rest = int(match[1]), unfinished.pop(int(match[1]), "") + match[3]
            if rest.endswith("<unfinished ...>"):
                unfinished[pid] = rest
            elif match[2] == "execve":
                self._ran(pid, rest)
            elif (child := re.search(r"= (\d+)$", rest)) and "CLONE_THREAD" not in rest:
                self._started(int(child[1]), pid)

    def _started(self, pid: int, parent: int) -> None:
        self.parents[pid] = parent
        if parent in self._tools or parent in self._below:
            self._below.add(pid)

    def _ran(self, pid: int, rest: str) -> None:
        if rest.endswith("= 0") and (program := _PROGRAM.search(rest)):
            self.programs[pid].append(rest)
            if program[1].startswith(self._simulated):
                self._tools.add(pid)

    @property
    def ours(self) -> list[int]:
        """Those that no simulated tool started."""
        return [pid for pid in self.parents if pid not in self._below]

    def name(self, pid: int) -> str:
        """Return the first program that a process ran; `sh, a subshell` where it ran none."""
        ran = self.programs.get(pid)
        found = _PROGRAM.search(ran[0]) if ran else None
        return Path(found[1]).name if found else "a subshell"

    def tree(self) -> Iterator[str]:
        """Yield a line for each of ours."""
        below = defaultdict(list)
        for pid in self.ours:
            below[self.parents[pid]].append(pid)

        def size(pid: int) -> int:
            return 1 + sum(map(size, below[pid]))

        def rows(pid: int, depth: int) -> Iterator[str]:
            yield f"{'  ' * depth}{size(pid)} {(self.programs.get(pid) or ['(subshell)'])[0][:160]}"
            for child in below[pid]:
                yield from rows(child, depth + 1)

        for pid in self.ours:
            if self.parents[pid] not in self.parents:
                yield from rows(pid, 0)

    def shown(self, what: str, *, tree: bool) -> str:
        """Return the counts as text."""
        kinds = ", ".join(f"{count} {name}" for name, count in Counter(map(self.name, self.ours)).most_common(12))
        lines = [f"{what}: {len(self.ours)} processes, and {len(self._below)} of simulated tools", f"  {kinds}"]
        return "\n".join([*lines, *(self.tree() if tree else ())])


def of_gate(sandbox: Sandbox, folder: Path) -> Processes:
    """Run a gate without known answers as a task of the second node."""
    gate = [sys.executable, "-m", "pytest_gpucluster", "gate", f"--cluster={sandbox.cluster_file}", "--budget=60s"]
    log = folder / "gate"
    srun = ["srun", "-N1", "-w", sandbox.nodes[1], "--gres=gpu:8", "--exclusive", *FOLLOW, str(log)]
    argv = [*srun, *gate, f"--folder={folder}/share", "--fresh=0"]
    subprocess.run(argv, env=sandbox.env, capture_output=True, timeout=300, check=False)
    return Processes(log.read_text(errors="replace").splitlines(), sandbox.cluster_file.parent / "simbin")


def of_suites(sandbox: Sandbox, folder: Path, suites: str) -> Processes:
    """Run suites on both nodes."""
    log, argv = folder / "suites", [sys.executable, "-m", "pytest", "-q", f"--cluster={sandbox.cluster_file}"]
    daemon = subprocess.run(
        ["pgrep", "-f", f"{sandbox.cluster_file.parent}/sbin/slurmd -N {sandbox.nodes[1]} "],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()[0]
    with subprocess.Popen([*FOLLOW, str(log), "-p", daemon], stderr=subprocess.DEVNULL) as follower:
        time.sleep(ATTACHED)
        done = subprocess.run(
            [*argv, "-m", suites, f"--report-dir={folder}/reports", str(SUITES)],
            env=sandbox.env,
            cwd=SUITES.parent,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        follower.terminate()
    if done.returncode:
        raise SystemExit(f"the suites ended with exit {done.returncode}:\n{done.stdout[-2000:]}")
    return Processes(log.read_text(errors="replace").splitlines(), sandbox.cluster_file.parent / "simbin")


def main() -> None:
    """Count and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suites", default="os or slurm or gpu or fabric", metavar="EXPRESSION")
    parser.add_argument("--tree", action="store_true")
    chosen = parser.parse_args()
    if shutil.which("strace") is None:
        raise SystemExit("strace is not on PATH: install it")
    with tempfile.TemporaryDirectory(prefix="bench-") as name, contextlib.ExitStack() as stack:
        sandbox = Sandbox(Path(name) / "s")
        stack.callback(sandbox.down)
        sandbox.up(nodes=2)
        print(of_gate(sandbox, Path(name)).shown("a gate", tree=chosen.tree))
        print(of_suites(sandbox, Path(name), chosen.suites).shown(f"{chosen.suites}, per node", tree=chosen.tree))
    print(stamp())


if __name__ == "__main__":
    main()
