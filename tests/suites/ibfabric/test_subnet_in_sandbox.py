"""The tools that the sandbox simulates, held against the real ones on the same fabric, which ibsim simulates, line by line."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from ibfabric_helpers import Topology, needs_ibsim, simulated

from pytest_gpucluster.suites.ibfabric.subnet import read_ibnetdiscover
from slurm_sandbox import hardware, models, node_files

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [needs_ibsim, pytest.mark.thorough]
NODES = 2
ERRORS = 40
TOOLS = ("ibnetdiscover", "iblinkinfo --line", "sminfo", "ibqueryerrors --threshold-file /dev/null")


class Shown:
    """What the sandbox's tools print of a fabric of few nodes."""

    def __init__(self, folder: Path) -> None:
        spec = models.MODELS["a100"]
        self.files = []
        for number in range(NODES):
            node = hardware.healthy_node(f"gpu{number + 1:02}", number, spec.gpus, spec, "/shared")
            for hca in node.hcas:
                hca.counters.clear()
            node.hcas[1].counters["symbol_error"] = ERRORS * number  # of mlx5_1 of the last node
            if number:
                node.subnet.append(f"uplink {node.hcas[0].leaf} 1 errors {ERRORS}")
            path = folder / f"subnet-{node.name}"
            path.write_text(re.sub(r"^since \d+", "since 1700000000", node_files.files(node)["subnet"]))
            self.files.append(str(path))

    def __call__(self, command: str) -> str:
        tool, _, arguments = command.partition(" ")
        words = {"tool": tool, "arguments": arguments, "records": str(models.DATA / "portinfo.txt")}
        options = [word for name, value in words.items() for word in ("-v", f"{name}={value}")]
        argv = ["awk", *options, "-f", str(models.DATA / "subnet.awk"), self.files[0], *self.files]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
        assert done.stderr == ""
        return done.stdout


def same_fabric(text: str) -> Topology:
    """Return the fabric of ibnetdiscover's output for ibsim, with names that its helper makes GUIDs of."""
    topology = Topology()
    for link in read_ibnetdiscover(text).links:
        one, other = (((it.description if it.kind == "HCA" else it.node), it.number) for it in link.ends)
        topology.connect(one, other)
    return topology


def masked(text: str) -> Counter[str]:
    """Return the lines without GUIDs, LIDs, boards, times and priorities. Their order is that of a table by GUID."""
    changes = (
        (r"\b(0x)?(?=[0-9a-f]*[a-f])[0-9a-f]{15,16}\b", "GUID"),
        (r"MQM\d{4}", "MODEL"),
        (r"devid=0x\w+", "devid=ID"),
        (r"lid +\d+", "lid LID"),
        (r'^(GUID " *\S.*?") +\d+ ', r"\1 LID "),
        (r"==>  GUID +\d+ ", "==>  GUID LID "),
        (r"Could be 12X", ""),  # ibsim's ports support it
        (r"(?<===) \d+\]", "COUNT]"),
        (r"generated on .*", "generated on DATE"),
        (r"(activity count|priority) \d+", r"\1 N"),
        (r"(?<=port 0 )lid LID|(?<=\d )lid LID(?= lmc)", "lid LID"),
    )
    for pattern, value in changes:
        text = re.sub(pattern, value, text, flags=re.MULTILINE)
    return Counter(line.rstrip() for line in text.splitlines())


def test_simulated_tools_print_the_lines_of_the_real_ones(tmp_path: Path) -> None:
    shown = Shown(tmp_path)
    topology = same_fabric(shown("ibnetdiscover"))
    with simulated(tmp_path, topology, "gpu01 mlx5_0") as running:
        for device, port in ((f"gpu{NODES:02} mlx5_1", 1), ("leaf01-1", 33)):
            line = f'PerformanceSet "{topology.node_id(device)}"[{port}] PortCounters.SymbolErrorCounter={ERRORS}'
            running.console(line)
        running.facts_once("gpu01 mlx5_0", lambda it: bool(it.after and len(it.after.counters) == 2))
        for command in TOOLS:
            of_sandbox, of_real = masked(shown(command)), masked(running.run(command, "gpu01 mlx5_0").stdout)
            assert ([*(of_sandbox - of_real)], [*(of_real - of_sandbox)]) == ([], []), command
