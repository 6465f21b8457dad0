"""Answers of a node about its links: the recorded 8 H200, and ports of adapters."""

from __future__ import annotations

from paths import TESTS

from pytest_gpucluster.core.probe import Answer

DATA = TESTS / "data" / "h200x8"
PORTS = """\
port mlx5_0 1;4: ACTIVE;400 Gb/sec (4X NDR);InfiniBand;32.0 GT/s PCIe;16;;;;;
port mlx5_1 1;4: ACTIVE;400 Gb/sec (4X NDR);InfiniBand;16.0 GT/s PCIe;8;;;;;
port mlx5_2 1;1: DOWN;400 Gb/sec (4X NDR);InfiniBand;32.0 GT/s PCIe;16;;;;;
port mlx5_3 1;4: ACTIVE;400 Gb/sec (4X NDR);InfiniBand;32.0 GT/s PCIe;16;virtual;;;;
port efa_0 1;4: ACTIVE;100 Gb/sec (4X EDR);Unspecified;;;;;;;
net eno1;up;25000
net eth1;up;-1
net ib0;down;400000
net lo;unknown;
end
"""


def network(text: str = PORTS) -> Answer:
    return Answer("gpu01", 0, text.encode())


def survey(**texts: str) -> Answer:
    """An answer of the survey: {section: its text}, exit 0; a text that begins with '!N ' exits N."""
    parts = []
    for name, text in texts.items():
        rc, body = text[1:].split(" ", 1) if text.startswith("!") else ("0", text)
        parts.append(f"@@ {name} {rc}\n{body}\n")
    return Answer("gpu01", 0, "".join(parts).encode())


def h200(**more: str) -> Answer:
    files = {"gpus": "query-gpu.txt", "nvlink": "nvlink-s.txt", "topology": "topo.txt"}
    # without the command line and the exit status
    recorded = {at: "\n".join((DATA / it).read_text().splitlines()[1:-1]) + "\n" for at, it in files.items()}
    return survey(**recorded | more)
