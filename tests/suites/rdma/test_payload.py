"""Two payloads on this machine with the sandbox's perftest: results in both directions, and what happens if one side fails."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sandbox_helpers import free_port

from pytest_gpucluster.kit.framework.payload_result import read_facts
from pytest_gpucluster.kit.framework.payload_step import command
from pytest_gpucluster.kit.payloads import perftest as shared
from pytest_gpucluster.kit.payloads import prelude
from pytest_gpucluster.suites.rdma import payload
from slurm_sandbox import perftest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

RAIL = {"rate": 400.0, "state": "ACTIVE", "link_layer": "InfiniBand", "mtu": 4096, "lid": 1}
RAIL |= {"speed": 1.0, "latency": 1.0, "gids": 8}
RAILS = {"r0": ["mlx5_0", 1, 0], "r1": ["mlx5_1", 1, 1]}


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """The folder of simulated tools, whose model has the nodes a and b."""
    (tmp_path / "base").mkdir()
    (tmp_path / "bin").mkdir()
    model = {"mlx5_0": RAIL, "mlx5_1": RAIL}
    (tmp_path / "base/perftest.json").write_text(json.dumps(model))
    (tmp_path / "base/network.json").write_text('{"links": {}, "leaf": [], "uplink": 1.0}')
    for name, _ in shared.PERFTESTS.values():
        tool = tmp_path / "bin" / name
        where = f'"{tmp_path}/nodes" "{tmp_path}/base" {name} "$SLURMD_NODENAME"'
        tool.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "{perftest.__file__}" {where} "$@"\n')
        tool.chmod(0o755)
    return tmp_path


def change(tools: Path, node: str, device: str, **changed: Any) -> None:
    (tools / "nodes" / node).mkdir(parents=True)
    model = {"mlx5_0": RAIL, "mlx5_1": RAIL}
    (tools / "nodes" / node / "perftest.json").write_text(json.dumps({**model, device: {**RAIL, **changed}}))


def run(
    tools: Path, *slots: tuple[list[str], list[str]], gid: int | None = None, nodes: str = "ab"
) -> dict[tuple[int, str, str], Mapping[str, Any]]:
    """Run the payloads of these nodes through slots of (rails, tests); return {(slot, rail, test): result}."""
    plan = {
        "nodes": {node: {"address": "127.0.0.1", "place": "ab".index(node), "rails": RAILS} for node in "ab"},
        "slots": [[rails, tests, ["ab"]] for rails, tests in slots],
        "gid": gid,
        "limit": 10,
    }
    job = str(free_port())  # the ports of the payloads follow from it
    path = f"{tools}/bin{os.pathsep}{os.environ['PATH']}"
    (tools / "plan.json").write_text(json.dumps(plan))
    started = []
    for node in nodes:
        with (tools / "plan.json").open() as given:
            argv = command(sys.executable, Path(payload.__file__), "run")
            env = {"PATH": path, "SLURMD_NODENAME": node, "SLURM_JOB_ID": job, prelude.SECRET: "s"}
            started.append(subprocess.Popen(argv, stdin=given, stdout=subprocess.PIPE, env=env))
    texts = [process.communicate(timeout=30)[0].decode() for process in started]
    facts = [fact for text in texts for fact in read_facts(text, "rdma")]
    return {(fact["slot"], fact.get("rail", ""), fact.get("test", "")): fact for fact in facts}


@pytest.mark.thorough
def test_each_direction_and_the_latency_are_measured_on_every_rail_and_then_all_at_once(tools: Path) -> None:
    change(tools, "b", "mlx5_1", speed=0.5)
    found = run(tools, (["r0"], ["write", "send", "read"]), (["r1"], ["write"]), (["r0", "r1"], ["write"]))
    assert found[0, "r0", "write"]["bandwidth"] == pytest.approx(49.2, rel=0.02)
    assert (found[0, "r0", "write"]["client"], found[0, "r0", "send"]["client"]) == ("a", "b")
    assert found[0, "r0", "read"]["latency"] == pytest.approx(2.35, rel=0.02)
    assert found[1, "r1", "write"]["bandwidth"] == pytest.approx(24.6, rel=0.02)
    assert all("bandwidth" in found[2, rail, "write"] for rail in ("r0", "r1"))


@pytest.mark.thorough
def test_a_missing_gid_is_reported_with_the_words_of_both_sides_and_the_next_slot_works(tools: Path) -> None:
    change(tools, "b", "mlx5_0", gids=1)
    found = run(tools, (["r0"], ["write", "read"]), (["r1"], ["write"]), gid=3)
    problem = found[0, "r0", "write"]["problem"]
    assert "a: ethernet_read_keys: Couldn't read remote address" in problem
    assert "b: Unable to set up socket connection" in problem
    assert (0, "r0", "read") not in found  # it would fail for the same reason
    assert "bandwidth" in found[1, "r1", "write"]


@pytest.mark.thorough
@pytest.mark.parametrize("node", ["a", "b"])
def test_a_port_that_is_down_is_reported_at_once_from_either_end(tools: Path, node: str) -> None:
    change(tools, node, "mlx5_0", state="DOWN")
    (fact,) = run(tools, (["r0"], ["write"])).values()
    assert fact["problem"].startswith(f"{node}: Port number 1 state is Down")


@pytest.fixture
def node_a(tools: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[shared.PerftestNode]:
    """The payload of node a in this process."""
    monkeypatch.setattr(shared, "MEETING_TIME", 0.5)
    monkeypatch.setenv("PATH", f"{tools}/bin{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SLURMD_NODENAME", "a")
    monkeypatch.setenv(prelude.SECRET, "s")
    monkeypatch.setenv("SLURM_JOB_ID", str(free_port()))
    rails = {node: {"address": "127.0.0.1", "place": "ab".index(node), "rails": RAILS} for node in "ab"}
    node = shared.PerftestNode({"nodes": rails, "gid": None, "limit": 0.1}, print)
    yield node
    node.meeting.close()


def test_a_partner_that_ends_is_an_error_and_no_hang(node_a: shared.PerftestNode) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", node_a.port_of("b")))
        other.listen()
        called = node_a.meet(0, "ab")
        other.accept()[0].close()
        with pytest.raises((EOFError, ConnectionError)), called.link, called.lines:
            called.receive()


@pytest.mark.parametrize("pair", ["ab", "ba"])
def test_a_partner_that_never_comes_is_given_up(node_a: shared.PerftestNode, pair: str) -> None:
    with pytest.raises(OSError, match=r"refused|in time"):
        node_a.meet(0, pair)


OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build"
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15"
BOTH = "      --use_cuda=<cuda device id>\n      --use_cuda_dmabuf Use CUDA DMA-BUF\n"


@pytest.mark.parametrize(
    ("usage", "driver", "peer", "expected"),
    [
        ("  -F, --CPU-freq", OPEN, True, None),  # Debian, Ubuntu
        (BOTH, CLOSED, True, []),
        (BOTH, OPEN, False, ["--use_cuda_dmabuf"]),  # perftest issues 280 and 346
        (BOTH, CLOSED, False, None),
        (BOTH.partition("\n")[0], OPEN, False, None),
    ],
)
def test_memory_of_gpus_is_used_where_the_kernel_can_register_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, usage: str, driver: str, peer: bool, expected: list[str] | None
) -> None:
    (tmp_path / "version").write_text(driver)
    monkeypatch.setattr(shared, "DRIVER", str(tmp_path / "version"))
    monkeypatch.setattr(shared, "PEER_MODULES", (str(tmp_path if peer else tmp_path / "absent"),))
    assert shared.gpu_memory_options(usage) == expected


@pytest.mark.parametrize(
    ("listed", "expected"), [("0-1,8\n", {1, 8}), ("40-63", {1, 2, 8}), ("", {1, 2, 8}), (None, {1, 2, 8})]
)
def test_a_tool_runs_on_the_adapters_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listed: str | None, expected: set[int]
) -> None:
    monkeypatch.setattr(shared, "NEAR", str(tmp_path / "%s"))
    if listed is not None:
        (tmp_path / "mlx5_0").write_text(listed)
    assert shared.near_cpus("mlx5_0", {1, 2, 8}) == expected


def test_the_version_is_reported_and_an_absent_tool_is_named(
    tools: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", f"{tools}/bin{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SLURMD_NODENAME", "a")
    payload.find()
    (tools / "bin/ib_read_lat").unlink()
    monkeypatch.setattr("shutil.which", lambda name: None if name == "ib_read_lat" else name)
    payload.find()
    first, second = read_facts(capsys.readouterr().out, "rdma")
    assert (first["version"], first["absent"]) == ("6.20", [])
    assert (second["version"], second["absent"]) == ("", ["ib_read_lat"])


def test_ports_of_nodes_and_rails_differ_on_one_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    node = object.__new__(shared.PerftestNode)
    node.plan = {"nodes": {f"n{i}": {"place": i} for i in range(250)}}
    ports = [node.port_of(name, rail) for name in node.plan["nodes"] for rail in range(-1, 18)]
    assert len(set(ports)) == len(ports)
    assert min(ports) >= prelude.FIRST_PORT
    assert max(ports) < prelude.FIRST_PORT + prelude.PORT_SPREAD
