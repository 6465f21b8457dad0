"""Checks of ray on plain facts: head, workers, tasks, and what a run must not leave."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from counter_examples import MONITOR, NOT_APPLICABLE, NOT_CHECKED, PASSED
from framework_helpers import Table, decided
from sandbox_helpers import free_port, wait_for
from suite_helpers import considered, machine

from pytest_gpucluster.core.finding import Explanation
from pytest_gpucluster.kit.framework.payload_step import command
from pytest_gpucluster.kit.payloads.prelude import Failure
from pytest_gpucluster.suites.ray import checks
from pytest_gpucluster.suites.ray import payload_node as ray_node
from pytest_gpucluster.suites.ray.checks import ClusterFacts, NodeFacts, Share
from pytest_gpucluster.suites.ray.steps import leftovers_command, remove_command

NODES = ("gpu01", "gpu02", "gpu03")
SHARES = dict.fromkeys(NODES, Share(2, 1))
DRIVER = Path(ray_node.__file__).with_name("payload_driver.py")


SHARE = Share(2, 1)
SILENT = Explanation("killed", "ended by a signal")
FULL = {"cpu": 2.0, "gpu": 1.0}


def lone(**change: Any) -> tuple[str, NodeFacts, Share]:
    """Return the arguments of the check of a node alone, whose facts are changed."""
    facts: dict[str, Any] = {
        "nodes": {"alive": {"gpu01": {"address": "10.0.0.1", **FULL}}},
        "tasks": {"ran": {"gpu01": "gpu01"}},
        "actors": {"ran": {"gpu01": "gpu01"}},
        "ended": {"outlived": 0, "ended": True},
    }
    return "gpu01", NodeFacts({**facts, **change}), SHARE


def problem(what: str, text: str = "words") -> dict[str, Any]:
    return {"problem": {"what": what, "problem": text}}


TRIAL = {"devices": "0", "uuid": "GPU-1", "error": ""}


def formed(**change: Any) -> ClusterFacts:
    ran, yes = {node: node for node in NODES}, dict.fromkeys(NODES, True)
    driver: dict[str, Any] = {
        "nodes": {"alive": dict.fromkeys(NODES, FULL), "seconds": 2.0},
        "tasks": {"ran": ran},
        "actors": {"ran": ran, "counted": {node: [1, 2] for node in NODES}},
        "objects": {"sent": yes, "fetched": yes, "rates": {}},
        "gpus": {"held": [[node, "0", f"GPU-{node}"] for node in NODES]},
        "tune": {"best": 4, "iterations": {"4": 8, "3": 2, "2": 1, "1": 1}, "errors": [], "seconds": 5.0},
        "tune_gpus": {"trials": {node: TRIAL | {"where": node} for node in NODES}, "patience": 120.0},
        "no_token": {"refused": True, "rc": 1, "output": "AuthenticationError"},
    }
    token = {"set": True, "exposed": 0}
    head = NodeFacts({"killed": {}, "ended": {}, "token": token})
    worker = NodeFacts({"left": {"seconds": 5.0}, "ended": {"outlived": 1}, "token": token})
    nodes = {"gpu01": head, "gpu02": worker, "gpu03": worker}
    return ClusterFacts(SHARES, "gpu01", nodes, {**driver, **change}, "2.60.0")


def with_node(facts: ClusterFacts, node: str, here: NodeFacts, *alive: str) -> ClusterFacts:
    known = {name: {"cpu": 2.0, "gpu": 1.0} for name in alive}
    driver = {**facts.driver, "nodes": {"alive": known}}
    return replace(facts, nodes={**facts.nodes, node: here}, driver=driver)


OPEN = formed(no_token={"refused": False, "rc": 0, "output": "hello"})


def trial(**change: str) -> tuple[Any, ...]:
    """Return the arguments of the check of the trials, of which that of gpu02 is changed."""
    trials = {"gpu02": {**TRIAL, "where": "gpu02", **change}} if change else {}
    return "gpu02", formed(tune_gpus={"trials": trials, "patience": 120.0}), SHARE, True


def requesting(**shares: Share) -> ClusterFacts:
    return replace(formed(), requested=shares)


def of_gpu02(facts: dict[str, Any] | None = None, silent: Any = None, *alive: str) -> ClusterFacts:
    """Return a cluster in which gpu02 reports this; the others are alive."""
    return with_node(formed(), "gpu02", NodeFacts(facts or {}, silent=silent), *(alive or ("gpu01", "gpu03")))


def held(*gpus: Any, facts: ClusterFacts | None = None) -> ClusterFacts:
    whole = facts or formed()
    return replace(whole, driver={**whole.driver, "gpus": {"held": list(gpus)}})


def tuned(best: int, iterations: dict[str, int], *errors: str) -> ClusterFacts:
    return formed(tune={"best": best, "iterations": iterations, "errors": [*errors], "seconds": 1})


def head_died(what: str) -> ClusterFacts:
    """Return a cluster whose head died; a worker reports `what`, or nothing."""
    worker = NodeFacts(problem(what) if what else {})
    return with_node(with_node(formed(), "gpu01", NodeFacts(silent=SILENT)), "gpu02", worker)


ONE, THREE = ["gpu01", "0", "GPU-1"], ["gpu03", "0", "GPU-3"]
NO_UUID = ["gpu02", "0", ""]
SHOWN = with_node(formed(), "gpu03", NodeFacts({"token": {"set": False, "exposed": 2}}), *NODES)
DEAD, KILLED = NodeFacts(silent=SILENT), NodeFacts({"killed": {}})
NO_OBJECTS, WORSE_WON = formed(objects={"sent": {}, "fetched": {}}), tuned(3, {"4": 8, "3": 8})
TWO_HELD = held(ONE, ["gpu01", "1", "GPU-2"], ["gpu02", "0", "x"])
LOST_OBJECTS = {"sent": {"gpu02": "timeout"}, "fetched": {"gpu02": False}, "rates": {"gpu02": 90}}
ELSEWHERE = {"ran": {"gpu02": "gpu03"}, "counted": {"gpu02": [1, 1]}}
PORT_OF_WORKER = with_node(of_gpu02(problem("port")), "gpu01", DEAD, "gpu03")
CASES: Table = {
    checks.tune_gpus: [
        ("not checked", *trial(uuid="")),
        ("configure: trial CUDA_VISIBLE_DEVICES other_devices", *trial(devices="")),
        ("configure: trial CUDA_VISIBLE_DEVICES other_devices [0, 1]", *trial(devices="0,1")),
        ("configure: trial failed", *trial(where="", error="RayTaskError")),
        ("configure: trial not_run [120]", *trial(where="")),
        ("configure: trial other_node", *trial(where="gpu03")),
        ("configure: trial not_run [120]", *trial()),
        ("not checked", "gpu02", formed(tune={"problem": "no module"}), SHARE, True),
        ("not applicable", "gpu02", formed(), SHARE, False),
        ("not applicable", "gpu02", formed(), Share(2, 0), True),
        ("passed", "gpu02", formed(), SHARE, True),
    ],
    checks.alone: [
        ("configure: nodes other_nodes", *lone(nodes={"alive": {"gpu07": FULL}})),
        ("configure: Ray ray", *lone(**problem("ray"))),
        ("configure: task not_run [0]", *lone(tasks={})),
        ("passed [0]", *lone()),
        ("configure: Ray killed", "gpu01", DEAD, SHARE),
        ("configure: Ray driver", *lone(**problem("driver"))),
        ("monitor: Ray port_taken [1]", *lone(**problem("port_taken", "port 1 (port) is taken by x"))),
        ("configure: Ray interface", *lone(**problem("interface"))),
        ("configure: nodes other_nodes", *lone(nodes={})),
        (
            "configure: gpu01 other_cpus; gpu01 other_gpus [4, 2, 0.5, 1, 0]",
            *lone(nodes={"alive": {"gpu01": {"cpu": 4.0, "gpu": 0.5}}}),
        ),
        ("configure: task failed [0]", *lone(tasks={"problem": "GetTimeoutError"})),
        ("configure: actor other_node [0]", *lone(actors={"ran": {"gpu01": "gpu02"}})),
        ("configure: ray start still_runs [0]", *lone(ended={})),
    ],
    checks.nodes: [
        ("monitor: gpu01 head not_started", replace(formed(), nodes={}, driver={})),
        ("monitor: gpu01 head killed", head_died("head")),
        ("monitor: gpu01 head killed; gpu02 port", PORT_OF_WORKER),
        ("monitor: nodes other_nodes [2]", requesting(gpu01=SHARE, gpu02=SHARE)),
        ("monitor: gpu02 other_cpus; gpu02 other_gpus [2, 4, 1, 2, 2]", requesting(**SHARES | {"gpu02": Share(4, 2)})),
    ],
    checks.tasks: [
        ("monitor: task other_node", "gpu02", formed(tasks={"ran": {"gpu02": "gpu03"}})),
        ("monitor: driver failed", "gpu02", formed(tasks={"problem": "x"})),
        ("monitor: driver no_result", "gpu02", formed(tasks={})),
        ("monitor: driver killed", "gpu02", replace(formed(tasks={}), nodes={"gpu01": DEAD})),
        ("not applicable", "gpu02", requesting(gpu02=SHARE)),
    ],
    checks.actors: [
        ("monitor: actor other_node; actor wrong_counts [1, 1, 1, 2]", "gpu02", formed(actors=ELSEWHERE)),
        ("not checked", "gpu02", formed(actors={"ran": {"gpu02": "gpu02"}})),
    ],
    checks.objects: [
        ("monitor: head to node failed; node to head wrong_data [90]", "gpu02", formed(objects=LOST_OBJECTS)),
        ("monitor: head to node; node to head not_arrived", "gpu02", NO_OBJECTS),
    ],
    checks.gpus: [
        ("not checked [2]", held(ONE, NO_UUID, THREE)),
        ("not checked [2]", held(ONE, THREE, facts=of_gpu02(silent=SILENT))),
        ("passed [3]", formed()),
        ("not applicable", requesting(**dict.fromkeys(NODES, Share(2, 0)))),
        ("configure: driver no_result", formed(gpus={})),
        ("configure: GPU-1 shared_gpu [2, 0, 1, 2]", held(ONE, ["gpu02", "1", "GPU-1"], THREE)),
        ("configure: actor failed [2]", held(ONE, NO_UUID, THREE, "timeout")),
        ("configure: gpu01; gpu03 other_gpus [2, 1, 0, 1, 3]", TWO_HELD),
    ],
    checks.tune: [
        ("passed [5]", formed()),
        ("configure: driver no_result", formed(tune={})),
        ("configure: trial failed; trial other_best [4, 7, 4, 8, 1]", tuned(4, {"4": 7, "3": 2}, "e")),
        ("configure: trial other_best; trial none_stopped [3, 8, 4, 8, 4, 8, 3, 8, 1]", WORSE_WON),
    ],
    checks.authentication: [
        *(
            ("configure: an unauthenticated client accepted [0]", replace(OPEN, version=it))
            for it in ("", "2.52.dev1", "3.0.0")
        ),
        ("not checked [2.9, 2.52]", replace(OPEN, version="2.9.1")),
        ("not checked [2.51, 2.52]", replace(OPEN, version="2.51.9")),
        ("passed", formed()),
        ("passed", replace(formed(), version="2.52")),
        ("passed", replace(formed(), version="")),
        ("configure: driver failed", formed(no_token={}, token={"problem": "no"})),
        ("not checked", replace(formed(), nodes={})),
        ("configure: gpu03 exposed; gpu03 no_token [2]", SHOWN),
    ],
    checks.head_lost: [
        ("configure: worker not_started", "gpu02", replace(formed(), nodes={"gpu01": KILLED})),
        ("configure: worker leave", "gpu02", of_gpu02(problem("leave"), None, *NODES)),
        ("not applicable", "gpu01", formed()),
        ("not checked", "gpu02", replace(formed(), nodes={"gpu02": formed().nodes["gpu02"]})),
        ("configure: worker no_result", "gpu02", of_gpu02({"ended": {}}, None, *NODES)),
        ("passed [2, 0]", "gpu02", of_gpu02({"left": {"seconds": 2}}, None, *NODES)),
    ],
}
test_each_case_has_its_verdict = decided(CASES)


def test_an_actor_without_a_uuid_may_lack_a_gpu_of_the_node() -> None:
    assert checks.gpus(held(ONE, NO_UUID, THREE)).reason_code == "too_few_gpus"


def objects(sent: object = True, **more: Any) -> ClusterFacts:
    return formed(objects={"sent": {"gpu02": sent}, "fetched": {"gpu02": True}, **more})


START = "https://docs.ray.io/en/latest/cluster/cli.html"
SLURM = "https://docs.ray.io/en/latest/cluster/vms/user-guides/community/slurm.html"
OBJECTS = "https://docs.ray.io/en/latest/ray-core/objects.html"
ACTORS = "https://docs.ray.io/en/latest/ray-core/actors.html"
SLOW = formed(nodes={"alive": dict.fromkeys(NODES, FULL), "seconds": 58.0})
STRANGER = with_node(formed(), "gpu02", formed().nodes["gpu02"], *NODES, "gpu09")
LESS = formed(nodes={"alive": {**dict.fromkeys(NODES, FULL), "gpu02": {"cpu": 2.0, "gpu": 0.0}}})
RESTARTED = formed(actors={"ran": {"gpu02": "gpu02"}, "counted": {"gpu02": [1, 1]}})
RAYLET = "process 4711 /opt/ray/raylet --raylet_socket_name=..."
nodes, tasks, actors, moved, left = checks.nodes, checks.tasks, checks.actors, checks.objects, checks.left
COUNTER_EXAMPLES = (
    machine(nodes, "all joined", START, PASSED, formed()),
    machine(nodes, "a cluster of one node", START, NOT_APPLICABLE, requesting(gpu01=SHARE)),
    machine(nodes, "a worker joined late", SLURM, PASSED, SLOW),
    machine(nodes, "a worker did not join", SLURM, MONITOR, of_gpu02(), sick=True),
    machine(nodes, "a node of another cluster joined", SLURM, MONITOR, STRANGER, sick=True),
    machine(nodes, "a node lost a GPU", START, MONITOR, LESS, sick=True),
    machine(tasks, "ran where it was bound", START, PASSED, "gpu02", formed()),
    machine(tasks, "the node is in no cluster", SLURM, NOT_CHECKED, "gpu02", of_gpu02()),
    machine(tasks, "did not run", START, MONITOR, "gpu02", formed(tasks={"ran": {}}), sick=True),
    machine(actors, "counts once and once more", ACTORS, PASSED, "gpu02", formed()),
    machine(actors, "was restarted between two calls", ACTORS, MONITOR, "gpu02", RESTARTED, sick=True),
    machine(moved, "slowly over Ethernet", OBJECTS, PASSED, "gpu02", objects(rates={"gpu02": 40.0})),
    machine(moved, "no rate was measured", OBJECTS, PASSED, "gpu02", objects()),
    machine(moved, "other content", OBJECTS, MONITOR, "gpu02", objects(sent=False), sick=True),
    machine(left, "nothing", SLURM, PASSED, ""),
    machine(left, "the node did not answer", SLURM, NOT_CHECKED, None),
    machine(left, "a raylet outlived its step", SLURM, MONITOR, RAYLET, sick=True),
)
test_runs_are_judged_as_a_person_would = considered(COUNTER_EXAMPLES)


# its raylet registers after the first try
RAY = """tries = []
remote = lambda **_: lambda it: it
is_initialized = lambda: len(tries) > 1
def init(**_):
    tries.append(1)
    if len(tries) < 2: raise ConnectionError
"""


@pytest.mark.parametrize(("join", "rc"), [(60, 0), (0, 1)])
def test_the_driver_connects_again_within_its_time(tmp_path: Path, join: int, rc: int) -> None:
    (tmp_path / "ray.py").write_text(RAY)
    words = command(sys.executable, DRIVER, json.dumps({"address": "", "ip": "", "join": join, "work": []}))
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    assert subprocess.run(words, env=env, stderr=subprocess.DEVNULL, check=False).returncode == rc


def plan(**change: Any) -> dict[str, Any]:
    nodes = {node: {"address": "127.0.0.1", "cpus": 2, "gpus": 0} for node in NODES}
    common = {"port": 20000, "blocks": 1, "interface": None, "marker": "ab12", "temp": "/tmp", "leave": 60}
    return {"nodes": nodes, **common, **change}


def test_nodes_of_one_host_share_neither_address_nor_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses, ports = set(), set()
    for node in NODES:
        monkeypatch.setenv("SLURMD_NODENAME", node)
        address = ray_node.own_address(plan())
        first = ray_node.block_of(plan(), address)
        addresses.add(address)
        ports |= set(range(first, first + ray_node.width_of(plan())))
    assert len(addresses) == 3
    assert len(ports) == 3 * ray_node.width_of(plan())
    assert max(ports) <= ray_node.LAST_PORT


@pytest.mark.parametrize(("address", "stride"), [("10.0.0.1", 1), ("127.0.1.2", len(NODES))])
def test_taken_ports_give_the_next_block(monkeypatch: pytest.MonkeyPatch, address: str, stride: int) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "gpu01")
    # the last port of one block, the first of the next
    held = {20007, 20000 + stride * ray_node.width_of(plan())}
    monkeypatch.setattr(ray_node, "taken", held.__contains__)
    assert ray_node.free_ports(plan(blocks=5), address) == 20000 + 2 * stride * ray_node.width_of(plan())
    with pytest.raises(Failure, match=r"port 20007 \(ray-client-server-port\) is taken"):
        ray_node.free_ports(plan(), address)  # the site names the ports


def test_a_port_that_is_taken_is_named_with_its_holder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "gpu01")
    port = free_port()
    program = f"import socket, time; s = socket.create_server(('127.0.0.1', {port})); print(); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-u", "-c", program], stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline()
            monkeypatch.setattr(ray_node, "LAST_PORT", 65535)
            with pytest.raises(Failure) as caught:
                ray_node.free_ports(plan(port=port), "10.0.0.1")
        finally:  # else a failure would wait for its end
            holder.kill()
    assert caught.value.kind == "port_taken"
    assert f"port {port} (port) is taken by python" in str(caught.value)
    assert f"(pid {holder.pid})" in str(caught.value)


@pytest.mark.thorough
def test_processes_and_folders_that_are_left_are_found_and_removed(tmp_path: Path) -> None:
    stem = f"{tmp_path}/r4071cc"
    folder = Path(stem + "hgpu01")
    folder.mkdir()
    marked = {**os.environ, ray_node.MARK: "4071ccab12cd/head/gpu01"}
    one = subprocess.Popen(["sleep", "600"], env=marked)
    other = subprocess.Popen(["sh", "-c", 'exec sleep 600 >"$0"', f"{folder}/log"])
    try:
        wait_for((folder / "log").exists, "the second one runs")
        found = set(shell(leftovers_command("4071ccab12cd", stem)).splitlines())
        assert found == {*(f"process {it.pid} sleep 600 " for it in (one, other)), f"folder {folder}"}
        shell(remove_command((one.pid, other.pid), stem))
        assert (one.wait(600), other.wait(600)) == (-9, -9)
    finally:
        one.kill()
        other.kill()
    assert shell(leftovers_command("4071ccab12cd", stem)) == ""


def shell(command: str) -> str:
    return subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False).stdout
