"""The links of a node, from recorded and written answers."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from links_helpers import h200, network

from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.kit.gpu.node_links import NETWORK, read_links, read_network

if TYPE_CHECKING:
    from pathlib import Path


def test_the_recorded_host() -> None:
    found = read_links(h200(), network("end\n"))
    assert (found.gpus, found.nvlinks, found.unread) == (8, ((18, 26.562),) * 8, {})
    assert found.pairs[0] == dict.fromkeys(range(1, 8), 18)
    assert found.pcie == (63.008,) * 8
    assert (found.adapters, found.interfaces) == ((), {})


def test_the_command_runs_in_a_real_shell() -> None:
    done = subprocess.run(["sh", "-c", NETWORK.command], capture_output=True, check=False, timeout=60)
    assert "lo" in read_network(Answer("here", done.returncode, done.stdout, done.stderr)).interfaces


TREE = {
    **{
        f"class/infiniband/mlx5_{card}/ports/{port}/{name}": text
        for card in range(3)
        for port in (1, 2)
        for name, text in (
            ("state", "4: ACTIVE"),
            ("rate", "400 Gb/sec (4X NDR)"),
            ("link_layer", "Ethernet"),
            ("gid_attrs/ndevs/0", f"eth{card}{port}"),
        )
        if (card, port, name) != (2, 2, "rate")
    },
    **{f"class/infiniband/mlx5_{card}/board_id": "MT_0838" for card in (0, 1)},
    **{f"devices/card{card}/current_link_speed": "32.0 GT/s PCIe" for card in range(3)},
    **{f"devices/card{card}/current_link_width": "16" for card in range(3)},
    "devices/card0/net/eth02/phys_port_name": "p1",
    "devices/card0/vpd": "\0other",
    "devices/card1/vpd": "\0 SW_MNG ",
    "devices/card2/physfn/uevent": "",
    "bus/pci/drivers/nvidia/0000:01:00.0/uevent": "",
    "bus/pci/drivers/nvidia/module/uevent": "",
    "class/net/eth0/operstate": "up",
    "class/net/eth0/speed": "25000",
    "class/net/lo/operstate": "unknown",
}
FOUND = """\
gpu;@/bus/pci/drivers/nvidia/0000:01:00.0
port mlx5_0 1;4: ACTIVE;400 Gb/sec (4X NDR);Ethernet;32.0 GT/s PCIe;16;;MT_0838;@/devices/card0;0;
port mlx5_0 2;4: ACTIVE;400 Gb/sec (4X NDR);Ethernet;32.0 GT/s PCIe;16;;MT_0838;@/devices/card0;0;p1
port mlx5_1 1;4: ACTIVE;400 Gb/sec (4X NDR);Ethernet;32.0 GT/s PCIe;16;;MT_0838;@/devices/card1;1;
port mlx5_1 2;4: ACTIVE;400 Gb/sec (4X NDR);Ethernet;32.0 GT/s PCIe;16;;MT_0838;@/devices/card1;1;
port mlx5_2 1;4: ACTIVE;400 Gb/sec (4X NDR);Ethernet;32.0 GT/s PCIe;16;virtual;;@/devices/card2;;
port mlx5_2 2;4: ACTIVE;;Ethernet;32.0 GT/s PCIe;16;virtual;;@/devices/card2;;
net eth0;up;25000
net lo;unknown;
end
"""


@pytest.mark.parametrize("awk", ["mawk", "gawk", "busybox"])
@pytest.mark.parametrize("shell", ["dash", "bash", "busybox"])
def test_the_command_prints_a_line_of_each_port(tmp_path: Path, shell: str, awk: str) -> None:
    sys = tmp_path / "sys"
    for name, text in TREE.items():
        (sys / name).parent.mkdir(parents=True, exist_ok=True)
        (sys / name).write_text(text + "\n" * bool(text))
    for card in range(3):
        (sys / f"class/infiniband/mlx5_{card}/device").symlink_to(sys / f"devices/card{card}")
    for program in {shell, awk}:
        if not shutil.which(program):
            pytest.skip(f"{program} is not installed")
    (tmp_path / "awk").write_text(f'#!/bin/sh\nexec {"busybox awk" if awk == "busybox" else awk} "$@"\n')
    (tmp_path / "awk").chmod(0o755)
    argv = ["busybox", "sh"] if shell == "busybox" else [shell]
    done = subprocess.run(
        [*argv, "-c", NETWORK.command.replace("=/sys/", f"={sys}/")],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout == FOUND.replace("@", str(sys))


def _row(name: str, board: str, path: str, *, rate: str = "400 Gb/sec (4X NDR)", marks: str = "0;") -> str:
    return f"port {name} 1;4: ACTIVE;{rate};InfiniBand;32.0 GT/s PCIe;16;;{board};{path};{marks}\n"


def _behind(switch: int, device: str) -> str:
    return f"/sys/devices/pci0000:{switch}0/0000:{switch}0:01.0/0000:{switch}1:00.0/{device}"


GPUS = "".join(f"gpu;{_behind(i, f'0000:{i}3:00.0')}\n" for i in (1, 2))
RAILS = "".join(_row(f"mlx5_{i}", "RAIL", _behind(i, f"0000:{i}2:00.0")) for i in (1, 2))
STORAGE = _row("mlx5_8", "CARD", "/sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0")
NEAR_STORAGE = _row("mlx5_9", "CARD", _behind(2, "0000:24:00.0"))
BRIDGES = "".join(_row(f"mlx5_1{i}", "", f"/sys/devices/x/0000:90:01.0/0000:91:00.{i}") for i in range(4))


@pytest.mark.parametrize(
    ("rows", "names"),
    [
        (GPUS + RAILS + STORAGE + NEAR_STORAGE + BRIDGES, ["mlx5_1", "mlx5_2"]),
        (RAILS + STORAGE, ["mlx5_1", "mlx5_2", "mlx5_8"]),  # the GPUs are not seen
        (GPUS + RAILS.partition("\n")[0] + "\n" + STORAGE, ["mlx5_1", "mlx5_8"]),  # one GPU has none
        (STORAGE + _row("mlx5_3", "", "", marks="1;") + _row("mlx5_4", "", "", marks="0;pf0vf1"), ["mlx5_8"]),
        (BRIDGES.replace(";16;;", ";16;virtual;", 3), ["mlx5_13"]),  # functions of SR-IOV
        (BRIDGES, ["mlx5_10", "mlx5_11", "mlx5_12", "mlx5_13"]),  # all adapters of a guest in one slot
        (BRIDGES.replace("4: ACTIVE", "1: DOWN", 2) + STORAGE, ["mlx5_8"]),
    ],
)
def test_only_rails_count_where_they_are_known(rows: str, names: list[str]) -> None:
    assert [adapter.name for adapter in read_network(network(rows + "end\n")).adapters] == names
