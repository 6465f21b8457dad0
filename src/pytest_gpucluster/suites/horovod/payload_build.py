# An import may raise anything (BLE001).
"""The Horovod of one node: its build, its interfaces, and from the first node whether ssh reaches the others.

Runs by `payload_step.command`, one task per node. Prints one JSON line.
"""

import argparse
import os
import shutil
import socket
import subprocess
import sys
from typing import Any, Dict, List

from pytest_gpucluster.kit.payloads.prelude import interfaces, node_name, print_json

# the options of horovodrun, and no prompts
SSH = ("ssh", "-o", "PasswordAuthentication=no", "-o", "StrictHostKeyChecking=no", "-o", "BatchMode=yes")
SIDE_BY_SIDE = 16
# `horovodrun --check-build` imports the framework in each of up to six forks: they inherit what is imported before
CHECK_BUILD = """
import contextlib, glob, importlib, os, runpy, sys
import horovod
for name in ("tensorflow", "torch", "mxnet"):
    if glob.glob(os.path.join(os.path.dirname(horovod.__file__), name, "mpi_lib*")):
        with contextlib.suppress(Exception):
            importlib.import_module(name)
sys.argv = ["horovodrun", "--check-build"]
runpy.run_module("horovod.runner.launch", run_name="__main__")
"""


def problem(what: str, text: str) -> Dict[str, Any]:
    """Return why there is no output: a stable word, and the text."""
    return {"what": what, "problem": text}


def build(patience: float) -> Dict[str, Any]:
    """Return the output of horovodrun --check-build, or why there is none."""
    try:
        import horovod
    except Exception as error:
        return problem("not_importable", "Horovod cannot be imported by %s: %s" % (sys.executable, error))
    beside = os.path.join(os.path.dirname(sys.executable), "horovodrun")
    program = beside if os.path.exists(beside) else shutil.which("horovodrun")
    if program is None:
        return problem("no_program", "horovod %s is installed, horovodrun is not on PATH" % horovod.__version__)
    try:
        done = subprocess.run(
            [sys.executable, "-c", CHECK_BUILD],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=patience,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return problem("timed_out", "%s --check-build did not end within %g s" % (program, patience))
    except OSError as error:
        return problem("not_runnable", "%s cannot be run: %s" % (program, error))
    if done.returncode != 0:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no message"]
        return problem("exit_status", "%s --check-build exited %d: %s" % (program, done.returncode, last[0][:300]))
    return {"text": done.stdout.decode(errors="replace"), "program": program}


def ssh_to(nodes: List[str]) -> Dict[str, str]:
    """Return {node: why ssh does not reach it}, without the nodes that it reaches."""
    refused = {}
    if shutil.which("ssh") is None:
        return dict.fromkeys(nodes, "there is no ssh client on this node")
    for first in range(0, len(nodes), SIDE_BY_SIDE):
        started = {
            node: subprocess.Popen(
                [*SSH, "-o", "ConnectTimeout=8", node, "true"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
            for node in nodes[first : first + SIDE_BY_SIDE]
        }
        for node, process in started.items():
            try:
                _, errors = process.communicate(timeout=15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                refused[node] = "no answer within 15 s"
                continue
            if process.returncode != 0:
                lines = errors.decode(errors="replace").strip().splitlines()
                refused[node] = lines[-1][:200] if lines else "ssh exited %d" % process.returncode
    return refused


def main(argv: List[str]) -> int:
    """Print all facts in one line."""
    parser = argparse.ArgumentParser(prog="horovod_build")
    parser.add_argument("--ssh", default="", help="nodes that the first task tries to reach, separated by commas")
    parser.add_argument("--patience", type=float, default=120.0)
    args = parser.parse_args(argv)
    facts = {
        "kind": "build",
        "node": node_name(),
        "host": socket.gethostname(),
        "python": sys.executable,
        "interfaces": interfaces(),
        **build(args.patience),
    }
    if args.ssh and os.environ.get("SLURM_PROCID") == "0":
        facts["ssh"] = ssh_to(args.ssh.split(","))
    print_json(**facts)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
