"""What SSH adds to the suites os, slurm and gpu on N virtual nodes: wall time over SSH to that of the login node.

    python benchmarks/ssh_cost.py [4 64] [--repeats 3]

The server is a real sshd on loopback, so what is measured is work (encryption, copies, logins), not the way. On one
machine the server's work and the client's share the cores with everything else; on two machines they do not. Both
sides are run in turn. Sandbox and server live in a temporary folder and are stopped; leave the machine idle.
"""

from __future__ import annotations

import argparse
import contextlib
import getpass
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from stamp import stamp
from tabulate import tabulate

from pytest_gpucluster.sandbox import Sandbox
from slurm_sandbox.daemons import search_path
from slurm_sandbox.ports import reserve

if TYPE_CHECKING:
    from collections.abc import Iterator

SUITES = Path(__file__).parent.parent / "suites"
OPTIONS = ("-q", "-p", "no:cacheprovider", "-m", "os or slurm or gpu")
RUN_LIMIT = 600  # seconds until a run counts as hung


@contextlib.contextmanager
def login_node(folder: Path) -> Iterator[dict[str, Any]]:
    """Run an sshd on loopback; yield the `transport:` of a cluster file that leads there."""
    server = shutil.which("sshd", path=search_path())
    if server is None:
        raise SystemExit("sshd is not here: install openssh-server")
    folder.mkdir()
    for name in ("host_key", "key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    with reserve(1) as port:
        (folder / "config").write_text(
            f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host_key\n"
            f"AuthorizedKeysFile {folder}/key.pub\nAllowUsers {getpass.getuser()}\nStrictModes no\nUsePAM no\n"
            "PasswordAuthentication no\nKbdInteractiveAuthentication no\nUseDNS no\nPidFile none\nSetEnv SHLVL=1\n"
        )
        argv = [server, "-D", "-f", str(folder / "config"), "-E", str(folder / "log")]
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL)
        while socket.socket().connect_ex(("127.0.0.1", port)) != 0:
            time.sleep(0.02)
    host_key = " ".join((folder / "host_key.pub").read_text().split()[:2])
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {host_key}\n")
    (folder / "ssh_config").write_text("")
    try:
        yield {
            "host": "127.0.0.1",
            "port": port,
            "key_file": str(folder / "key"),
            "known_hosts": str(folder / "known_hosts"),
            "config_file": str(folder / "ssh_config"),
        }
    finally:
        process.terminate()
        process.wait(10)


def run(folder: Path, env: dict[str, str], cluster: Path) -> dict[str, float]:
    """Run the suites once: wall time, and the processor time of pytest and its children."""
    argv = [sys.executable, "-m", "pytest", *OPTIONS, f"--cluster={cluster}", f"--report-dir={folder / 'reports'}"]
    begin = time.perf_counter()
    process = subprocess.Popen(
        [*argv, str(SUITES)], env=env, cwd=SUITES.parent, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert process.stdout is not None
    out = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"the suites ended with exit {process.returncode}:\n{out[-3000:].decode()}")
    return {"s": time.perf_counter() - begin, "cpu": usage.ru_utime + usage.ru_stime}


def measure(nodes: int, repeats: int) -> list[str]:
    """Return a row of the table: medians for one number of nodes."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name, login_node(Path(name) / "ssh") as transport:
        folder = Path(name)
        sandbox = Sandbox(folder / "s")
        try:
            sandbox.up(nodes=nodes)
            far = folder / "far.yaml"
            far.write_text(json.dumps({**yaml.safe_load(sandbox.cluster_file.read_text()), "transport": transport}))
            env = {**os.environ, **sandbox.env, "PYTHONPYCACHEPREFIX": str(folder / "pyc")}
            sides = {"local": sandbox.cluster_file, "ssh": far}
            for cluster in sides.values():
                run(folder, env, cluster)  # writes the compiled modules
            found: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
            for _ in range(repeats):
                for side, cluster in sides.items():
                    found[side].append(run(folder, env, cluster))
        finally:
            sandbox.down()
    middle = {
        (side, what): statistics.median(one[what] for one in runs)
        for side, runs in found.items()
        for what in ("s", "cpu")
    }
    ratios = [ssh["s"] / local["s"] for local, ssh in zip(found["local"], found["ssh"], strict=True)]
    return [
        str(nodes),
        *(f"{middle[side, what]:.1f}" for what in ("s", "cpu") for side in ("local", "ssh")),
        f"{statistics.median(ratios):.2f}",
        f"{min(ratios):.2f} to {max(ratios):.2f}",
    ]


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("nodes", type=int, nargs="*", default=[4, 64])
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    rows = [measure(nodes, options.repeats) for nodes in options.nodes]
    headers = ("nodes", "local s", "ssh s", "local cpu s", "ssh cpu s", "ratio of s", "in turn")
    print(tabulate(rows, headers=headers, disable_numparse=True))
    print(stamp())


if __name__ == "__main__":
    main()
