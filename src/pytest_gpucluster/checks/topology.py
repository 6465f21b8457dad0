"""Leaf switches from text: which node, and which adapter of it, hangs on which leaf. Pure.

Two sources: `scontrol show topology -o` (Slurm's topology/tree plugin) and `ibnetdiscover` (infiniband-diags).
"""

from __future__ import annotations

import re

from pytest_gpucluster import hostlist
from pytest_gpucluster.errors import ProbeError

_FIELD = re.compile(r"\b(\w{1,80})=(\S*)")
# ibnetdiscover, a port line of a switch: [1]  "H-0002c90300a1b2c0"[1](2c90300a1b2c1)  # "gpu01 mlx5_0" lid 4 4xNDR
_SWITCH = re.compile(r'Switch\s+\d+\s+"([^"]+)"\s*#\s*"([^"]*)"')
_CA_PORT = re.compile(r'\[\d+\](?:\([0-9a-fA-F]+\))?\s+"H-[^"]*"\[\d+\][^#]*#\s*"([^"]*)"')


def parse_slurm_topology(text: str) -> dict[str, str]:
    """Return {node: leaf switch} of `scontrol show topology -o`; {} where Slurm knows no topology.

    A leaf is a switch of Level=0. ProbeError where a line names a leaf without its nodes.
    """
    leaves: dict[str, str] = {}
    for line in text.splitlines():
        fields = dict(_FIELD.findall(line))
        if "SwitchName" not in fields or fields.get("Level") != "0":
            continue
        if not fields.get("Nodes"):
            raise ProbeError(
                f"scontrol show topology: leaf {fields['SwitchName']} lists no nodes: {line[:80]}"
            )
        try:
            nodes = hostlist.expand(fields["Nodes"])
        except ValueError as error:
            raise ProbeError(f"scontrol show topology: {error}") from error
        leaves.update((node, fields["SwitchName"]) for node in nodes)
    return leaves


def parse_ibnetdiscover(text: str) -> dict[tuple[str, str], str]:
    """Return {(host, adapter): leaf switch} of `ibnetdiscover`.

    Adapters are found by their node description, 'gpu01 mlx5_0' or 'gpu01 HCA-1', which the rdma-ndd service
    sets. A description without a host name is left out. ProbeError where the text shows no switch.
    """
    leaves: dict[tuple[str, str], str] = {}
    switch = ""
    seen = False
    for line in text.splitlines():
        if match := _SWITCH.match(line):
            seen, switch = True, match[2] or match[1]
        elif not line.strip() or line.startswith(("Ca\t", "Ca ", "vendid")):
            switch = "" if not line.strip() or line.startswith("Ca") else switch
        elif switch and (match := _CA_PORT.match(line)):
            host, _, adapter = match[1].partition(" ")
            if adapter:
                leaves[host.split(".")[0], adapter.strip()] = switch
    if not seen:
        raise ProbeError("ibnetdiscover: no switch in its output; run it as root on a node of the fabric")
    return leaves


def node_leaves(adapters: dict[tuple[str, str], str]) -> dict[str, str]:
    """Return {node: leaf} for the nodes whose adapters all hang on one leaf.

    In a rail-optimised fabric a node's adapters hang on different leaves: such nodes are left out, since no
    single leaf is theirs.
    """
    of_node: dict[str, set[str]] = {}
    for (node, _), leaf in adapters.items():
        of_node.setdefault(node, set()).add(leaf)
    return {node: next(iter(found)) for node, found in of_node.items() if len(found) == 1}
