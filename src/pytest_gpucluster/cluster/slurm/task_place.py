"""Where the tasks of a step ran: inside the container that the step states, as many per node as it requests. Pure.

A task of a step with --container-image or --container-name reports, in its first line, two facts that only sh reads:

root: device and path of the mount at / (the fields 3 and 4 of /proc/self/mountinfo). Enroot binds the folder
ENROOT_DATA_PATH/pyxis_NAME there, so that the path ends with the name of the container. If it does not (Enroot starts a
.sqsh by squashfuse, without a folder), the root is compared with that of a task without a container on the same node.
A slurmd that does not load Pyxis ignores the options, since srun has taken them: the task runs on the host.

image: architecture, and checksum and length (POSIX cksum) of the image's /etc/os-release, /etc/environment and lists of
packages. Neither mounts nor hooks of Enroot change these files. One image has one value on all nodes; '' if the image
has no cksum.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpucluster.core import hostlist
from pytest_gpucluster.core.majority import norm
from pytest_gpucluster.core.scripts import script

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_gpucluster.cluster.slurm.result import TaskResult

MARK = script(__package__, "task_place.sh")
CAUSE = "the tasks did not run where the step states: plugstack.conf, a container's name, or options of srun"
HINT = (
    "grep -r pyxis /etc/slurm/plugstack.conf* on the node, and restart slurmd after a change; enroot list; "
    "environments and srun_args of the cluster file"
)
# the code of a finding with a reason of this module: the configuration must be changed
MISPLACED = "misplaced"
_UNNAMED = r"(?:\d+_)?\d+\.\d+"  # pyxis_JOB.STEP, and pyxis_JOB_JOB.STEP if containers belong to jobs


@dataclass(frozen=True)
class Stated:
    """The container that a step states: image, and name without its mode."""

    image: str = ""
    name: str = ""

    def __str__(self) -> str:
        return f"image {self.image}" if self.image else f"container {self.name}"

    def __bool__(self) -> bool:
        return bool(self.image or self.name)

    def has_root(self, root: str) -> bool:
        """Return whether the path of a root is that of the container's folder."""
        name = rf"(?:\d+_)?{re.escape(self.name)}" if self.name else _UNNAMED
        return re.search(rf"/pyxis_{name}(?://deleted)?$", root) is not None


def stated(options: Sequence[str]) -> Stated:
    """Return the container that options of srun state; --container-image and -name may stand in `srun_args` too."""
    given = dict(word.split("=", 1) for word in options if re.match(r"--container-(image|name)=", word))
    name = given.get("--container-name", "").partition(":")[0]
    return Stated(given.get("--container-image", ""), name)


def undecided(container: Stated, tasks: Sequence[TaskResult]) -> tuple[str, ...]:
    """Return the nodes with a task whose root does not show the container: their host's root must be compared."""
    others = (task.node for task in tasks if task.node and not container.has_root(task.root))
    return tuple(dict.fromkeys(others))


def outside(container: Stated, tasks: Sequence[TaskResult], host_roots: Mapping[str, str]) -> dict[str, str]:
    """Return {node: reason} of the nodes with a task that did not run in the container, or of which it is unknown.

    host_roots: {node: root of a task without a container} of the nodes that `undecided` names.
    """
    found: dict[str, str] = {}
    for task in tasks:
        if not task.node or container.has_root(task.root):
            continue
        host = host_roots.get(task.node, "")
        if not task.root or not host:
            found[task.node] = (
                f"whether the task ran in the {container} is not known: it could not read /proc/self/mountinfo"
            )
        elif named := re.search(r"/pyxis_[^/]*$", task.root):
            found[task.node] = f"the task ran in the container {named[0][1:]}, not in the {container}"
        elif task.root == host:
            found[task.node] = (
                f"the task ran on the host, not in the {container}: slurmd there does not load Pyxis (plugstack.conf)"
            )
    return found


def other_image(container: Stated, tasks: Sequence[TaskResult], expected: str = "") -> dict[str, str]:
    """Return {node: reason} of the nodes whose container is not of the expected image, or not of most nodes' image.

    expected: the fingerprint of the image in a new container, '' if it is not known.
    """
    images = {task.node: task.image for task in tasks if task.node and task.image[-1:].isdigit()}
    found = {}
    for arch in {image.partition("-")[0] for image in images.values()}:
        alike = {node: image for node, image in images.items() if image.partition("-")[0] == arch}
        usual = norm(alike.items())
        for node, image in alike.items():
            if arch == expected.partition("-")[0] and image != expected:
                found[node] = (
                    f"the container {container.name} (fingerprint {image}) is not from the image "
                    f"{container.image} ({expected}): enroot remove it, or leave out one of them"
                )
            elif image != usual.value and len(usual.votes) > 1:
                others = hostlist.fold(usual.votes[0][1] if usual.clear else alike.keys() - {node})
                found[node] = (
                    f"the {container} has the fingerprint {image}, on {others} another: two images have one name"
                )
    return found


def not_imported(container: Stated, why: str) -> str:
    """Return the reason if the image cannot be compared with a container that the site has named."""
    return (
        f"whether the container {container.name} is from the image {container.image} is not known, since a second "
        f"import of the image failed: leave out one of them ({why})"
    )


def miscounted(
    nodes: Sequence[str], ntasks_per_node: int | None, ntasks: int, tasks: Sequence[TaskResult]
) -> dict[str, str]:
    """Return {node: reason} if a node has more tasks than the step requests per node; {} if no number was requested.

    Fewer tasks alone are tasks that did not start, which have their own messages.
    """
    if not ntasks_per_node or ntasks != len(nodes) * ntasks_per_node:
        return {}
    counts = Counter(task.node for task in tasks if task.node)
    if all(count <= ntasks_per_node for count in counts.values()):
        return {}
    words = ", ".join(f"{counts[node]} on {node}" for node in nodes[:8])
    return {
        node: f"Slurm placed the tasks otherwise than requested, {ntasks_per_node} per node: {words}: see srun_args, "
        "SLURM_DISTRIBUTION and SelectTypeParameters"
        for node in nodes
        if counts[node] != ntasks_per_node
    }
