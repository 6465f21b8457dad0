"""Leaf switches of nodes, from `scontrol show topology -o` (Slurm's topology/tree plugin). Pure."""

from __future__ import annotations

import re

from pytest_gpucluster.core import hostlist
from pytest_gpucluster.core.errors import ProbeError

_FIELD = re.compile(r"\b(\w{1,80})=(\S*)")


def parse_slurm_topology(text: str) -> dict[str, str]:
    """Return {node: leaf switch} of `scontrol show topology -o`; {} if Slurm has no topology.

    A leaf is a switch of Level=0; one for nodes that are yet to come, as in a cloud, has none. ProbeError if nodes are no hostlist.
    """
    leaves: dict[str, str] = {}
    for line in text.splitlines():
        fields = dict(_FIELD.findall(line))
        if "SwitchName" not in fields or fields.get("Level") != "0" or not fields.get("Nodes"):
            continue
        try:
            nodes = hostlist.expand(fields["Nodes"])
        except ValueError as error:
            raise ProbeError(f"scontrol show topology: {error}") from error
        leaves.update((node, fields["SwitchName"]) for node in nodes)
    return leaves
