"""Folders that killed runs left on the tested file systems: as runs see them here, and as jobs see them on the nodes."""

from __future__ import annotations

import json
import re
import shlex
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpucluster.cluster.slurm.leftovers import Leftover
from pytest_gpucluster.core.errors import GpuClusterError
from pytest_gpucluster.core.probe import last_line
from pytest_gpucluster.kit.node.own_folder import remove_command
from pytest_gpucluster.suites.storage.config import StorageConfig
from pytest_gpucluster.suites.storage.payload import MARKER, STEM

if TYPE_CHECKING:
    from pytest_gpucluster.cluster.channel.channel import Channel
    from pytest_gpucluster.cluster.slurm.client import Slurm
    from pytest_gpucluster.config.models import Cluster

_NAME = re.compile(rf"{STEM}[0-9a-f-]+")


def folders(cluster: Cluster) -> list[Path]:
    """Return the shared folders in which a killed run may have left its own."""
    config = cluster.section(StorageConfig)
    return [Path(one.path) for one in config.filesystems if one.kind == "shared"] if config else []


def on_nodes(slurm: Slurm, fleet: Channel, cluster: Cluster) -> tuple[list[Leftover], list[str]]:
    """Return the folders on local file systems whose job has ended, and why a node could not be read."""
    config = cluster.section(StorageConfig)
    paths = [one.path for one in config.filesystems if one.kind == "local"] if config else []
    if not paths:
        return [], []
    patterns = " ".join(f"{shlex.quote(path)}/{STEM}*/" for path in paths)
    listed = f'for f in {patterns}; do f=${{f%/}}; [ ! -L "$f" ] && [ -O "$f" ] && echo "$f" && cat "$f/{MARKER}" && echo; done; true'
    answers = fleet.ask(listed)
    live = {int(job) for job in slurm.run("squeue", "-h", "-a", "-o", "%A").split() if job.isdigit()}
    name = slurm.config().get("ClusterName", "")
    found = [
        Leftover(f"folder {path} on {node}, whose job {job} has ended", partial(_remove, fleet, node, path))
        for node, answer in answers.items()
        for path, job in _marked(answer.out, name)
        if job not in live
    ]
    unread = {node: answer.problem for node, answer in answers.items() if answer.rc is None}
    return found, [f"{node} was not checked: {problem}" for node, problem in unread.items()]


def _marked(text: str, cluster: str) -> list[tuple[str, int]]:
    """Return (folder, job) of lines with a folder's path and, below it, the marker of a job of this cluster."""
    found, lines = [], text.splitlines()
    for path, marker in pairwise(lines):
        try:
            about = json.loads(marker)
            if _NAME.fullmatch(Path(path).name) and about["cluster"] == cluster and int(about["job"]):
                found.append((path, int(about["job"])))
        except (ValueError, KeyError, TypeError):
            continue
    return found


def _remove(fleet: Channel, node: str, path: str) -> None:
    answer = fleet.ask_node(node, remove_command(shlex.quote(path)), fresh=True)
    if answer.rc != 0:
        raise GpuClusterError(f"{node}: {answer.problem or last_line(answer.err) or f'exit {answer.rc}'}")
