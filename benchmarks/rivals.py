"""This plugin beside ReFrame, testinfra over SSH and a loop of srun: the same checks on the same sandbox.

    python benchmarks/rivals.py [4 16] [--checks 40] [--repeats 1] [--sides gpucluster reframe ...] [--limit 300]

Every side asks the commands of sides/questions.py and judges by the same patterns; a side that judges fewer checks than
there are stops the benchmark; one that judges any otherwise than is right is named after the table, and the benchmark
fails. In every round the sides run in turn on the same machine; ratios are of one round, and the medians of the rounds
are printed. What would take a side longer than `--limit` seconds is run with fewer checks a node and with half of
these, and a line through both tells what all take: such figures bear a `~`.
The nodes of a sandbox share one machine's CPUs, so what the checks' commands cost is in all figures; with `--free`
every check is an `echo` of the node's shell, and what is left is what the sides cost. `make reframe` installs ReFrame
(from PyPI) into .cache/reframe.
"""

from __future__ import annotations

import argparse
import contextlib
import getpass
import json
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stamp import stamp
from tabulate import tabulate

from pytest_gpucluster.sandbox import Sandbox

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

HERE = Path(__file__).parent
ROOT = HERE.parent
SIDES = HERE / "sides"
REFRAME = ROOT / ".cache/reframe/bin/reframe"
OURS = "gpucluster"
SLOW = ("srun per check and node", "testinfra over SSH", "ReFrame")  # whose sizes are limited
HUNG = 3000  # seconds until a run counts as hung
PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull)
FAULT = "governor"  # what --fault puts in; the first check finds it


@dataclass(frozen=True)
class Ground:
    """Where a round takes place: folder, environment of Slurm, cluster file, nodes, checks a node."""

    folder: Path
    env: dict[str, str]
    cluster: Path
    nodes: tuple[str, ...]
    checks: int
    workers: int
    free: bool

    @property
    def items(self) -> int:
        """Return how many verdicts there have to be."""
        return len(self.nodes) * self.checks

    def hosts(self) -> str:
        """Return testinfra's --hosts."""
        return ",".join(f"ssh://{node}" for node in self.nodes)


@dataclass(frozen=True)
class Measured:
    """One run of a side: seconds, processes and threads started on the login node, requests to slurmctld, verdicts."""

    seconds: float
    processes: int
    requests: int
    passed: int
    failed: int
    checks: int


# --- the sides ------------------------------------------------------------------------------------------------------


def probes(ground: Ground) -> list[str]:
    """Return the command of this plugin with probes."""
    return [*ours(ground), "suites/probes"]


def facts(ground: Ground) -> list[str]:
    """Return the command of this plugin with the same checks on facts that they share, as its own suites do."""
    return [*ours(ground), "suites/facts"]


def stock(ground: Ground) -> list[str]:
    """Return the command of this plugin with testinfra's file as it is."""
    return [*ours(ground), str(SIDES / "test_questions.py")]


def ours(ground: Ground) -> list[str]:
    """Return what both have in common."""
    nodes = f"--nodes={','.join(ground.nodes)}"
    return [
        *PYTEST,
        f"--rootdir={SIDES}",
        f"--cluster={ground.cluster}",
        nodes,
        f"--report-dir={ground.folder / 'reports'}",
    ]


def testinfra(ground: Ground) -> list[str]:
    """Return the command of testinfra over SSH: persistent connections, several workers."""
    settings = [f"--hosts={ground.hosts()}", f"--ssh-config={ground.folder / 'ssh/config'}"]
    workers = ["-n", str(ground.workers)]
    plugins = ["-p", "no:gpucluster"]
    return [
        *PYTEST,
        *plugins,
        f"--rootdir={SIDES}",
        *workers,
        *settings,
        f"--junitxml={ground.folder / 'ssh.xml'}",
        str(SIDES / "test_questions.py"),
    ]


def loop(_: Ground) -> list[str]:
    """Return the command of the loop: one srun per check and node."""
    return [sys.executable, str(SIDES / "srun_loop.py")]


def script(_: Ground) -> list[str]:
    """Return the command of the loop with one srun per node."""
    return [sys.executable, str(SIDES / "srun_loop.py"), "--whole"]


def reframe(ground: Ground) -> list[str]:
    """Return the command of ReFrame."""
    prefix = ground.folder / "reframe"
    shutil.rmtree(prefix, ignore_errors=True)
    prefix.mkdir()
    return [
        str(REFRAME),
        f"--config-file={SIDES / 'reframe_settings.py'}",
        "--system=sandbox",
        f"--checkpath={SIDES / 'reframe_checks.py'}",
        "--exec-policy=async",
        f"--prefix={prefix}",
        f"--report-file={prefix / 'report.json'}",
        "--run",
    ]


def floor(ground: Ground) -> list[str]:
    """Return the command of the floor: a bare step and an empty pytest of as many items."""
    empty = ground.folder / "test_empty.py"
    empty.write_text(
        "import pytest\n\n\n"
        f'@pytest.mark.parametrize("number", range({ground.items}))\ndef test_nothing(number):\n    pass\n'
    )
    plain = [
        *PYTEST,
        f"--rootdir={ground.folder}",
        f"--junitxml={ground.folder / 'empty.xml'}",
        "-p",
        "no:gpucluster",
        str(empty),
    ]
    step = ["sh", "-c", f'srun -N{len(ground.nodes)} true && exec "$@"', "sh"]
    return [*step, *plain]


SIDE: dict[str, Callable[[Ground], list[str]]] = {
    OURS: probes,
    "gpucluster, facts shared": facts,
    "gpucluster, testinfra's file": stock,
    "floor": floor,
    "srun per node": script,
    "srun per check and node": loop,
    "testinfra over SSH": testinfra,
    "ReFrame": reframe,
}
SHORT = {
    "probes": OURS,
    "facts": "gpucluster, facts shared",
    "stock": "gpucluster, testinfra's file",
    "floor": "floor",
    "script": "srun per node",
    "loop": "srun per check and node",
    "testinfra": "testinfra over SSH",
    "reframe": "ReFrame",
}


def verdicts(side: str, ground: Ground, output: str) -> tuple[int, int]:
    """Return how many checks a side found right and wrong, by its own report."""
    if side == "ReFrame":
        return reframe_verdicts(json.loads((ground.folder / "reframe/report.json").read_text()))
    return pytest_verdicts(output)


def reframe_verdicts(report: dict[str, Any]) -> tuple[int, int]:
    """Return (passed, failed) of a ReFrame report; what was skipped or aborted is neither."""
    said = report["session_info"]
    wrong = said["num_failures"]
    return said["num_cases"] - wrong - said.get("num_aborted", 0) - said.get("num_skipped", 0), wrong


def pytest_verdicts(output: str) -> tuple[int, int]:
    """Return (passed, failed) of the last line with counts of tests, not of nodes; errors and skips are neither."""
    for line in reversed(output.splitlines()):
        if "node" not in line and re.search(r"\d+ (passed|failed)\b", line):
            # `failed alike` are failures too
            passed, failed = (sum(map(int, re.findall(rf"(\d+) {what}\b", line))) for what in ("passed", "failed"))
            return passed, failed
    return 0, 0


# --- one run --------------------------------------------------------------------------------------------------------


def requests_in(sdiag: str) -> int:
    """Return the requests that slurmctld has counted by type since its statistics were reset."""
    _, _, rest = sdiag.partition("statistics by message type")
    table, _, _ = rest.partition("statistics by user")
    return sum(int(count) for count in re.findall(r"^\s+\w+\s+\( *\d+\) +count:(\d+)", table, re.MULTILINE))


def measure(side: str, ground: Ground) -> Measured:
    """Run one side once; SystemExit where it does not judge every check."""
    plan = ground.folder / "asked.json"
    plan.write_text(json.dumps({"checks": ground.checks, "nodes": ground.nodes, "free": ground.free}))
    env = {**ground.env, "GPUCLUSTER_BENCH_ASKED": str(plan)}
    argv, count = SIDE[side](ground), ground.folder / "count"
    space = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable]
    slurm(ground, "sdiag", "--reset")
    begin = time.perf_counter()
    with (ground.folder / "output").open("w+") as out:
        done = subprocess.run(
            [*space, str(SIDES / "counted.py"), str(count), *argv],
            env=env,
            cwd=ground.folder,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            timeout=HUNG,
            check=False,
        )
        seconds = time.perf_counter() - begin
        out.seek(0)
        output = out.read()
    requests = requests_in(slurm(ground, "sdiag"))
    if done.returncode not in (0, 1):
        raise SystemExit(f"{side} ended with exit {done.returncode}:\n{output[-3000:]}")
    passed, failed = verdicts(side, ground, output)
    if passed + failed != ground.items:
        raise SystemExit(f"{side}: {passed} right and {failed} wrong are not {ground.items}:\n{output[-3000:]}")
    return Measured(seconds, int(count.read_text()), requests, passed, failed, ground.checks)


def slurm(ground: Ground, *argv: str) -> str:
    """Run a command of Slurm."""
    done = subprocess.run(argv, env=ground.env, check=True, capture_output=True, text=True, timeout=60)
    return done.stdout


# --- an sshd a node -------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def sshds(ground: Ground, state: Path) -> Iterator[None]:
    """Run an sshd a node on 127.0.0.1, each with a port of its own, which shows the node's files and tools."""
    folder, program = ground.folder / "ssh", shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        raise SystemExit("sshd is not on PATH: install openssh-server, or leave testinfra away (--sides)")
    folder.mkdir(mode=0o700)
    for name in ("host_key", "key"):
        argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(argv, check=True)
    shutil.copy(folder / "key.pub", folder / "authorized_keys")
    ports = dict(zip(ground.nodes, free_ports(len(ground.nodes)), strict=True))
    (folder / "config").write_text(ssh_config(folder, ports))
    path = f"{state / 'simbin'}:{ground.env['PATH']}"
    running = []
    try:
        for node, port in ports.items():
            own = f"SHLVL=1 PATH={path} SLURMD_NODENAME={node} SLURM_SANDBOX_NODE={state / 'nodes' / node}"
            conf = folder / f"sshd_config.{node}"
            conf.write_text(sshd_config(folder, port, own))
            running.append(start_sshd(program, conf))
        wait_for(folder, ground.nodes)
        yield
    finally:
        for process in running:
            process.send_signal(signal.SIGTERM)
        for process in running:
            process.wait(timeout=20)


def start_sshd(program: str, conf: Path) -> subprocess.Popen[bytes]:
    """Start one in a mount namespace of its own: it wants a folder /run/sshd, which this machine need not have."""
    script = 'mount -t tmpfs run /run && mkdir -p /run/sshd && exec "$@"'
    argv = ["unshare", "--mount", "sh", "-c", script, "sh", program, "-D", "-e", "-f", str(conf)]
    with conf.with_name(f"{conf.name}.log").open("wb") as log:
        return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def wait_for(folder: Path, nodes: Sequence[str]) -> None:
    """Wait until each answers; SystemExit where one does not."""
    deadline = time.monotonic() + 180  # of all
    for node in nodes:
        while True:
            argv = ["ssh", "-F", str(folder / "config"), "-o", "ControlMaster=no", "-o", "ControlPath=none"]
            done = subprocess.run([*argv, node, "true"], capture_output=True, text=True, check=False)
            if done.returncode == 0:
                break
            if time.monotonic() > deadline:
                log = (folder / f"sshd_config.{node}.log").read_text()
                raise SystemExit(f"sshd of {node} does not answer: {done.stderr.strip()}: {log[-500:]}")
            time.sleep(0.05)


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens at."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def ssh_config(folder: Path, ports: dict[str, int]) -> str:
    """Return the client's configuration: connections are shared and kept."""
    hosts = "".join(f"Host {node}\n  HostName 127.0.0.1\n  Port {port}\n" for node, port in ports.items())
    return f"""\
{hosts}Host *
  User {getpass.getuser()}
  IdentityFile {folder}/key
  IdentitiesOnly yes
  UserKnownHostsFile /dev/null
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking no
  LogLevel ERROR
  BatchMode yes
  ControlMaster auto
  ControlPersist 600
  ControlPath {folder}/%n
"""


def sshd_config(folder: Path, port: int, environment: str) -> str:
    """Return the configuration of one sshd."""
    return f"""\
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
AllowUsers {getpass.getuser()}
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
UseDNS no
StrictModes no
PidFile none
PrintMotd no
PrintLastLog no
MaxStartups 500
MaxSessions 500
SetEnv {environment}
"""


# --- rounds and tables ----------------------------------------------------------------------------------------------


@dataclass
class Found:
    """What all rounds of one number of nodes gave, by side."""

    runs: dict[str, list[Measured]] = field(default_factory=dict)

    def rows(self, nodes: int, checks: int) -> list[list[str]]:
        """Return the table: medians, and the median of the ratios to ours of the same round."""
        own, rows = self.runs[OURS], []
        for side, runs in self.runs.items():
            mark = "~" if runs[0].checks < checks else ""
            pairs = zip(runs, own, strict=True)
            figures = (
                f"{statistics.median(run.seconds for run in runs):.1f}",
                f"{statistics.median(run.seconds / mine.seconds for run, mine in pairs):.2f}",
                f"{statistics.median(run.processes for run in runs):.0f}",
                f"{statistics.median(run.requests for run in runs):.0f}",
            )
            rows.append([str(nodes), side, str(runs[0].checks * nodes), *(mark + figure for figure in figures)])
        return rows


def extrapolated(half: Measured, part: Measured, checks: int) -> Measured:
    """Return what all checks would have taken by two measurements: a fixed cost, and one of each check.

    `checks` stays that of the greater measurement, which marks the figures.
    """
    ahead = (checks - part.checks) / (part.checks - half.checks)

    def line(name: str) -> float:
        low, high = getattr(half, name), getattr(part, name)
        return float(high + max(0.0, high - low) * ahead)

    return replace(part, seconds=line("seconds"), processes=round(line("processes")), requests=round(line("requests")))


HEAD = ("nodes", "side", "checks run", "s", "times gpucluster", "processes", "requests")


def affordable(side: str, ground: Ground, limit: float, known: dict[str, float]) -> Ground:
    """Return the ground with as many checks a node as a rival can run within the limit, two at least."""
    each = known.get(side, 0.0)
    if side not in SLOW or each * ground.items <= limit:
        return ground
    return replace(ground, checks=max(2, min(ground.checks, int(limit / each / len(ground.nodes)))))


def measure_within(side: str, ground: Ground, limit: float, known: dict[str, float]) -> Measured:
    """Run all checks, or as many as the limit allows and half as many, and say what all would take."""
    part = affordable(side, ground, limit, known)
    if part.checks == ground.checks:
        return measure(side, ground)
    half = measure(side, replace(part, checks=part.checks // 2))
    print(f"  half: {half}", file=sys.stderr, flush=True)
    return extrapolated(half, measure(side, part), ground.checks)


def compare(count: int, sides: Sequence[str], options: argparse.Namespace, known: dict[str, float]) -> Found:
    """Run all rounds on one sandbox."""
    found = Found({side: [] for side in sides})
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder, state = Path(name), Path(name) / "s"
        sandbox = Sandbox(state)
        try:
            sandbox.up(nodes=count)
            kept = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
            env = {**kept, **sandbox.env, "PYTHONPYCACHEPREFIX": str(folder / "pyc"), "PYTHONPATH": str(SIDES)}
            nodes = tuple(sandbox.status()["nodes"])
            ground = Ground(folder, env, sandbox.cluster_file, nodes, options.checks, options.workers, options.free)
            with contextlib.ExitStack() as stack:
                if "testinfra over SSH" in sides:
                    stack.enter_context(sshds(ground, state))
                if options.fault:
                    sandbox.fault(FAULT, nodes[-1])
                measure(OURS, replace(ground, checks=1))  # writes the compiled modules
                for _ in range(options.repeats):
                    for side in sides:
                        run = measure_within(side, ground, options.limit, known)
                        found.runs[side].append(run)
                        print(f"  {count} nodes, {side}: {run}", file=sys.stderr, flush=True)
        finally:
            sandbox.down()
    for side, runs in found.runs.items():
        known[side] = statistics.median(run.seconds / (options.checks * count) for run in runs)
    return found


def disagreeing(found: Found, wrong: int) -> list[str]:
    """Return who judged otherwise than is right: it was not the same work."""
    return [
        f"{side} found {run.failed} checks wrong, there are {wrong}"
        for side, runs in found.runs.items()
        for run in runs
        if side != "floor" and run.failed != wrong
    ]


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("nodes", type=int, nargs="*", default=[4])
    parser.add_argument("--checks", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--workers", type=int, default=4, help="of xdist, for testinfra")
    parser.add_argument("--limit", type=float, default=300, help="seconds of one run, by what the smaller size took")
    parser.add_argument("--sides", nargs="+", choices=SHORT, default=list(SHORT))
    parser.add_argument("--free", action="store_true", help="checks that start no process: what the sides cost")
    parser.add_argument("--fault", action="store_true", help="put a fault into a node: all sides have to find it")
    options = parser.parse_args()
    sides = [SHORT[name] for name in SHORT if name in options.sides or name == "probes"]
    if "ReFrame" in sides and not REFRAME.exists():
        print("ReFrame is left away: `make reframe` installs it", file=sys.stderr)
        sides.remove("ReFrame")
    known: dict[str, float] = {}
    rows, void = [], []
    for count in options.nodes:
        found = compare(count, sides, options, known)
        rows += found.rows(count, options.checks)
        void += disagreeing(found, int(options.fault))
    print(tabulate(rows, headers=HEAD, disable_numparse=True))
    print(f"{stamp()}; ~: extrapolated from runs with fewer checks a node")
    if void:
        raise SystemExit("not the same work, the ratios are void: " + "; ".join(void))


if __name__ == "__main__":
    main()
