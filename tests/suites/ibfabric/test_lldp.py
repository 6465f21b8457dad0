"""Neighbours as lldpd prints them."""

from __future__ import annotations

import json

import pytest
from paths import DATA

from pytest_gpucluster.core.errors import NotAvailable, ProbeError
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.suites.ibfabric.lldp import NEIGHBOURS, Neighbour, parse_neighbours

LEAVES = (
    Neighbour("rail0", "leaf01", ("swp1s0",), "56:2b:5d:60:bc:12"),
    Neighbour("rail1", "leaf02", ("swp1",), "22:f9:8b:a6:95:6e"),
)


def recorded(name: str) -> str:
    return (DATA / "ibfabric" / name).read_text()


@pytest.mark.parametrize("form", ["json", "json0"])
def test_both_forms_of_lldpcli_read_alike(form: str) -> None:
    assert parse_neighbours(recorded(f"lldp-1.0.16-two.{form}")) == LEAVES
    assert parse_neighbours(recorded(f"lldp-1.0.16-one.{form}")) == (
        Neighbour("swp1s0", "gpu01.example.com", ("rail0",), "fa:8b:3f:75:a6:20"),
    )


def test_forms_of_the_json() -> None:
    for text in ('{"lldp": {}}', '{"lldp": [{}]}', '{\n  "lldp": {\n    \n  }\n}\n'):
        assert parse_neighbours(text) == ()
    # a switch without a name has its chassis identifier
    chassis = {"id": {"type": "mac", "value": "aa:bb"}, "capability": []}
    port = {"id": {"type": "ifname", "value": "Eth1/1"}, "descr": "Eth1/1"}
    body = {"via": "LLDP", "chassis": chassis, "port": port}
    found = parse_neighbours(json.dumps({"lldp": {"interface": {"rail0": body}}}))
    assert found == (Neighbour("rail0", "aa:bb", ("Eth1/1",), "aa:bb"),)
    # several neighbours at one interface
    two = [{"rail0": {"chassis": {node: {"id": {}}}, "port": port}} for node in ("a", "b")]
    assert [it.node for it in parse_neighbours(json.dumps({"lldp": {"interface": two}}))] == ["a", "b"]
    for text in ("", "[]", "{}", '{"lldp": 1}', "{" * 5000):
        with pytest.raises(ProbeError):
            parse_neighbours(text)


def answer(output: str, rc: int = 0) -> Answer:
    states = "/sys/class/net/lo/operstate:unknown\n/sys/class/net/rail0/operstate:up\n"
    return Answer("gpu01", 0, f"{states}rdma mlx5_0 rail0\nlldp\n{output}rc {rc}\n".encode())


def test_probe_reads_states_and_rdma_devices() -> None:
    found = NEIGHBOURS.parse(answer(recorded("lldp-1.0.16-two.json")))
    assert (found.found, found.rdma) == (LEAVES, {"rail0": "mlx5_0"})
    assert found.states == {"lo": "unknown", "rail0": "up"}


@pytest.mark.parametrize(
    ("output", "rc", "reason"),
    [
        ("sh: 1: lldpcli: not found\n", 127, "lldpcli is not installed"),
        ("2026 [WARN] unable to connect to socket /run/lldpd.socket: No such file\n", 1, "is lldpd running"),
        ("-----\nLLDP neighbors:\n", 0, "lldpcli: LLDP neighbors:"),  # built without JSON (before 0.9.7)
    ],
)
def test_node_without_lldpd_is_not_checked(output: str, rc: int, reason: str) -> None:
    with pytest.raises(NotAvailable, match=reason):
        NEIGHBOURS.parse(answer(output, rc))
