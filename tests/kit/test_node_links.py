"""The links of a node, from recorded and written answers."""

from __future__ import annotations

import subprocess

import pytest
from links_helpers import PORTS, h200, network, survey

from pytest_gpucluster.core.errors import ProbeError
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.kit.node_links import NETWORK, Adapter, read_links, read_network


def test_the_recorded_host() -> None:
    found = read_links(h200(), network("end\n"))
    assert (found.gpus, found.nvlinks, found.unread) == (8, ((18, 26.562),) * 8, {})
    assert found.pairs[0] == dict.fromkeys(range(1, 8), 18)
    assert found.pcie == (63.008,) * 8
    assert (found.adapters, found.interfaces) == ((), {})


def test_active_physical_ports_and_interfaces_that_are_up() -> None:
    found = read_network(network())
    assert found.adapters == (
        Adapter("mlx5_0", 1, 50.0, "InfiniBand", 63.008),
        Adapter("mlx5_1", 1, 50.0, "InfiniBand", 15.752),
        Adapter("efa_0", 1, 12.5, "Unspecified", None),
    )
    assert [adapter.usable for adapter in found.adapters] == [50.0, 15.752, 12.5]
    assert found.interfaces == {"eno1": 3.125, "eth1": None, "lo": None}


def test_the_command_runs_in_a_real_shell() -> None:
    done = subprocess.run(["sh", "-c", NETWORK.command], capture_output=True, check=False, timeout=60)
    assert "lo" in read_network(Answer("here", done.returncode, done.stdout, done.stderr)).interfaces


def test_what_cannot_be_read_has_its_reason() -> None:
    with pytest.raises(ProbeError, match="ended early"):
        read_network(network(PORTS.removesuffix("end\n")))
    found = read_links(survey(gpus="!127 sh: nvidia-smi: not found"), network("cut"))
    assert (found.gpus, found.pcie) == (0, ())
    assert found.unread == {
        "adapters and interfaces": "/sys/class/infiniband and /sys/class/net: the answer ended early"
    }
    cut = read_links(h200(topology="!1 nothing"), network())
    assert "topology" in cut.unread
    assert cut.pairs == {}
