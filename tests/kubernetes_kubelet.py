"""A SIMULATED kubelet: it runs the containers of Jobs as processes of this machine, with simulated GPUs."""

from __future__ import annotations

import re
import socket
import subprocess
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from corpus_cases import ROOT
from sandbox_helpers import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kubernetes_server import Objects

PYTHON = ROOT / ".cache" / "frameworks" / "bin" / "python"
# The `python3 -c PROGRAM ...` of all containers, as children of one process: torch is imported once.
_FORKS = """
import json, os, socket, sys
import torch.distributed
while True:
    client, _ = server.accept()
    message, files, _, _ = socket.recv_fds(client, 1 << 20, 2)
    if os.fork() == 0:
        if child := os.fork():
            client.send(bytes([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 255]))
            os._exit(0)
        (_, program, *words), env = json.loads(message)
        os.dup2(files[0], 1), os.dup2(files[1], 2)
        os.environ.update(env)
        at = words.index("PAYLOAD")
        sys.argv = ["-c", *words[:at], "--device", "cpu", "--warmup", "0", "--iters", "1", *words[at:]]
        exec(program, {"__name__": "__main__"})
        sys.exit()
    client.close(), os.close(files[0]), os.close(files[1])
"""
_PYTHON3 = """#!/usr/bin/python3 -ISE
import json, os, socket, sys
client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
client.connect({address!r})
socket.send_fds(client, [json.dumps([sys.argv[1:], dict(os.environ)]).encode()], [1, 2])
sys.exit(client.recv(1)[0])
"""


class Kubelet:
    """Starts the pods of each created Job at once. `gpus_of`: {node: the node whose GPUs its pods see}."""

    def __init__(self, folder: Path, gpus_of: dict[str, str]) -> None:
        self.folder, self.gpus_of = folder, gpus_of
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.jobs: list[dict[str, Any]] = []
        self.port = free_port()
        self._tool("nvidia-smi", '#!/bin/sh\ncat "$SIMULATED_GPUS"\n')
        self._tool("getent", "#!/bin/sh\n")  # the cluster's DNS, which would have the Service by now
        # the payload itself, on CPUs
        self._tool("python3", _PYTHON3.format(address=str(folder / "forks")))

    def _tool(self, name: str, script: str) -> None:
        path = self.bin / name
        path.write_text(script)
        path.chmod(0o755)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Offer python3 to the containers."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
            server.bind(str(self.folder / "forks"))
            server.listen()
            program = f"import socket; server = socket.socket(fileno={server.fileno()}){_FORKS}"
            argv = ["env", "OMP_NUM_THREADS=1", str(PYTHON), "-c", program]
            with subprocess.Popen(argv, pass_fds=[server.fileno()]) as forks:
                try:
                    yield
                finally:
                    forks.kill()

    def __call__(self, found: Objects, job: dict[str, Any]) -> None:
        """Start the pods of a Job, and report how they end."""
        self.jobs.append(job)
        spec = job["spec"]["template"]["spec"]
        affinity = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        nodes = [term["matchFields"][0]["values"][0] for term in affinity["nodeSelectorTerms"]]
        threads = [
            threading.Thread(target=self._pod, args=(found, job, index, nodes[index]))
            for index in range(job["spec"].get("completions", 1))
        ]
        for thread in threads:
            thread.start()

    def _pod(self, found: Objects, job: dict[str, Any], index: int, node: str) -> None:
        name = f"{job['metadata']['name']}-{index}"
        (container,) = job["spec"]["template"]["spec"]["containers"]
        message, gpus = self.folder / f"{name}.message", self.folder / f"{name}.gpus"
        uuid = f"GPU-00000000-0000-0000-0000-0000000000{self.gpus_of.get(node, node)[-2:]}"
        gpus.write_text(f"GPU 0: NVIDIA H100 80GB HBM3 (UUID: {uuid})\n")
        words = [word.replace("/dev/termination-log", str(message)) for word in container["command"]]
        env = {it["name"]: it.get("value", node) for it in container.get("env", ())} | {
            "PATH": f"{self.bin}:/usr/bin:/bin",
            "JOB_COMPLETION_INDEX": str(index),
            "SIMULATED_GPUS": str(gpus),
        }
        if "MASTER_ADDR" in env:
            env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self.port)}
        done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
        # SIMULATED: the ranks ran on CPUs, which the suite does not accept for GPUs
        found.logs[name] = re.sub(r"(Rank +(\d+) .*)\[-\] CPU", r"\1[0000:1\2:00] NVIDIA H100 80GB HBM3", done.stdout)
        text = message.read_text() if message.exists() else done.stderr[-2048:]
        ended = {"exitCode": done.returncode, "message": text}
        pod = {
            "kind": "Pod",
            "apiVersion": "v1",
            "metadata": {
                "name": name,
                "namespace": job["metadata"]["namespace"],
                "labels": job["spec"]["template"]["metadata"]["labels"],
                "annotations": {"batch.kubernetes.io/job-completion-index": str(index)},
                "ownerReferences": [{"kind": "Job", "uid": job["metadata"]["uid"]}],
            },
            "spec": {"nodeName": node, "containers": [{"name": "check"}]},
            "status": {
                "phase": "Failed" if done.returncode else "Succeeded",
                "containerStatuses": [{"name": "check", "state": {"terminated": ended}}],
            },
        }
        with found.lock:
            found.kinds["pods"].append(pod)
