"""The report of a task about NCCL's variables: order of the files, lines without effect, origin of a value."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.core.errors import ProbeError
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.suites.nccl.environment_facts import ENVIRONMENT, SCRIPT, NcclEnvironment

if TYPE_CHECKING:
    from pathlib import Path

TEXT = """env NCCL_PROTO=LL
env NCCL_NET_PLUGIN=ofi
file /home/alice/.nccl.conf
| NCCL_DEBUG=WARN
| NCCL_ALGO="Ring"

file /etc/nccl.conf
| # of the image
|
| NCCL_DEBUG=INFO
| NCCL_PROTO=Simple
| CUDA_DEVICE_ORDER=PCI_BUS_ID
| export NCCL_SHM_DISABLE=1
|  NCCL_P2P_DISABLE=1

seen /etc/profile.d/nccl.sh:3:export NCCL_PROTO="LL" # ticket 7
seen /etc/profile.d/nccl.sh:4:export NCCL_NET_PLUGIN=ofi2
port mlx5_0 1 4:ACTIVE InfiniBand
port mlx5_1 1 1:DOWN InfiniBand
port mlx5_2 1 4:ACTIVE Ethernet virtual
net lo eno1
unreadable /opt/topo.xml
searched
lib libnccl.so.2
end
"""


def read(text: str) -> NcclEnvironment:
    return ENVIRONMENT.parse(Answer("gpu01", 0, text.encode()))


def test_the_environment_counts_before_the_users_file_and_that_before_the_systems() -> None:
    found = read(TEXT)
    assert {name: (it.value, it.where) for name, it in found.effective.items()} == {
        "NCCL_PROTO": ("LL", ""),
        "NCCL_NET_PLUGIN": ("ofi", ""),
        "NCCL_DEBUG": ("WARN", "/home/alice/.nccl.conf:1"),
        "NCCL_ALGO": ('"Ring"', "/home/alice/.nccl.conf:2"),  # NCCL removes no quotes
    }
    assert found.ignored == (
        ("/etc/nccl.conf:6", "export NCCL_SHM_DISABLE=1"),
        ("/etc/nccl.conf:7", " NCCL_P2P_DISABLE=1"),
    )


def test_ports_that_are_up_and_physical_are_usable_and_a_cut_text_is_no_report() -> None:
    assert [port.usable for port in read(TEXT).ports] == [True, False, False]
    with pytest.raises(ProbeError, match="ended early"):
        read(TEXT.removesuffix("end\n"))


def test_the_script_reports_a_real_environment(tmp_path: Path) -> None:
    (tmp_path / "topo.xml").write_text("<system/>")
    conf = tmp_path / "nccl.conf"
    conf.write_text(
        f"NCCL_TOPO_FILE={tmp_path}/topo.xml\nNCCL_GRAPH_FILE={tmp_path}/absent.xml"
    )  # no newline at the end
    (tmp_path / ".bashrc").write_text("# a comment\nexport NCCL_DEBUG=INFO\n")
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "NCCL_CONF_FILE": str(conf), "NCCL_DEBUG": "INFO"}
    done = subprocess.run(["sh", "-c", SCRIPT], env=env, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    found = read(done.stdout)
    assert found.environment == {"NCCL_CONF_FILE": str(conf), "NCCL_DEBUG": "INFO"}
    own = [it.where for it in found.files if it.where.startswith(str(conf))]  # beside /etc/nccl.conf here
    assert own == [f"{conf}:1", f"{conf}:2"]
    readable = {f"{tmp_path}/topo.xml": True, f"{tmp_path}/absent.xml": False, str(conf): True}
    assert found.readable.items() >= readable.items()
    assert found.where(found.effective["NCCL_DEBUG"]) == f"{tmp_path}/.bashrc:2"
    assert "lo" in found.interfaces
    assert found.libraries is not None
