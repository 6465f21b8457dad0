"""Checks of ray on plain facts: head, workers, tasks, and what a run must not leave."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from framework_helpers import Table, imported, rows_of, told
from sandbox_helpers import free_port, wait_for

from pytest_gpucluster.core.check import Action, Outcome
from pytest_gpucluster.kit.payloads.prelude import Failure
from pytest_gpucluster.suites.ray import checks
from pytest_gpucluster.suites.ray import payload_node as ray_node
from pytest_gpucluster.suites.ray.checks import ClusterFacts, NodeFacts, Share
from pytest_gpucluster.suites.ray.steps import leftovers_command, remove_command

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpucluster.core.check import Verdict
from framework_helpers import as_reported

from pytest_gpucluster.core.check import Finding, Verdict
from pytest_gpucluster.suites.ray import checks as ray

NODES = ("gpu01", "gpu02", "gpu03")
SHARES = dict.fromkeys(NODES, Share(2, 1))
DRIVER = Path(ray_node.__file__).with_name("payload_driver.py")


def reported(verdict: Verdict) -> str:
    return "; ".join(f"{found.part}: {found.measured} / {found.expected}" for found in verdict.findings)


# --- checks on facts


def lone(**change: Any) -> NodeFacts:
    facts: dict[str, Any] = {
        "nodes": {"alive": {"gpu01": {"address": "10.0.0.1", "cpu": 2.0, "gpu": 1.0}}},
        "tasks": {"ran": {"gpu01": "gpu01"}},
        "actors": {"ran": {"gpu01": "gpu01"}},
        "ended": {"outlived": 0, "ended": True},
    }
    return NodeFacts({**facts, **change})


TRIAL = {"devices": "0", "uuid": "GPU-1", "error": ""}


def formed(**change: Any) -> ClusterFacts:
    driver: dict[str, Any] = {
        "nodes": {"alive": {node: {"cpu": 2.0, "gpu": 1.0} for node in NODES}, "seconds": 2.0},
        "tasks": {"ran": {node: node for node in NODES}},
        "actors": {"ran": {node: node for node in NODES}, "counted": {node: [1, 2] for node in NODES}},
        "objects": {"sent": dict.fromkeys(NODES, True), "fetched": dict.fromkeys(NODES, True), "rates": {}},
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


def judged(facts: ClusterFacts) -> dict[str, Verdict]:
    return {
        "nodes": checks.nodes(facts),
        "tasks": checks.tasks("gpu02", facts),
        "actors": checks.actors("gpu02", facts),
        "objects": checks.objects("gpu02", facts),
        "gpus": checks.gpus(facts),
        "tune": checks.tune(facts),
        "tune_gpus": checks.tune_gpus("gpu02", facts, Share(2, 1), True),
        "token": checks.token(facts, True),
        "head_lost": checks.head_lost("gpu02", facts),
    }


def test_a_good_cluster_passes_all_checks() -> None:
    assert {name: verdict.outcome for name, verdict in judged(formed()).items()} == dict.fromkeys(
        judged(formed()), Outcome.PASSED
    )
    assert checks.alone("gpu01", lone(), Share(2, 1)).outcome is Outcome.PASSED


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"nodes": {"alive": {"gpu01": {"cpu": 4.0, "gpu": 1.0}}}}, "CPUs of gpu01: 4 / 2"),
        ({"nodes": {"alive": {"gpu01": {"cpu": 2.0, "gpu": 0}}}}, "GPUs of gpu01: 0 / 1"),
        ({"nodes": {"alive": {"gpu07": {"cpu": 2.0, "gpu": 1.0}}}}, "nodes: gpu07 / gpu01"),
        ({"tasks": {"problem": "GetTimeoutError"}}, "task: GetTimeoutError"),
        ({"actors": {"ran": {}}}, "actor: did not run"),
        ({"ended": {"outlived": 0, "ended": False}}, "did not end on SIGTERM"),
        (
            {"problem": {"what": "port", "problem": "port 6379 (port) is taken by redis"}},
            "port: port 6379 (port) is taken by redis",
        ),
        (
            {"problem": {"what": "interface", "problem": "interface ib9 has no"}},
            "network interface: interface ib9",
        ),
    ],
)
def test_each_fault_of_a_node_alone_has_its_words(change: dict[str, Any], words: str) -> None:
    verdict = checks.alone("gpu01", lone(**change), Share(2, 1))
    assert verdict.outcome is Outcome.FAILED
    assert words in reported(verdict)
    assert (verdict.action is Action.MONITOR) == ("is taken" in words)  # by no fault of the node


@pytest.mark.parametrize(
    ("check", "change", "words"),
    [
        ("tasks", {"tasks": {"ran": {"gpu02": "gpu03"}}}, "task: gpu03 / runs on gpu02"),
        ("actors", {"actors": {"ran": {"gpu02": "gpu02"}, "counted": {"gpu02": [1, 1]}}}, "counts: [1, 1]"),
        (
            "objects",
            {"objects": {"sent": {"gpu02": False}, "fetched": {"gpu02": True}}},
            "head to node: other content",
        ),
        ("objects", {"objects": {"sent": {"gpu02": True}, "fetched": {}}}, "node to head: nothing arrived"),
        ("objects", {"objects": {"problem": "OutOfMemory"}}, "driver: OutOfMemory"),
        (
            "gpus",
            {"gpus": {"held": [[node, "0", "GPU-1"] for node in NODES]}},
            "GPU GPU-1: held by 3 actors at once",
        ),
        ("gpus", {"gpus": {"held": [["gpu01", "0", "GPU-1"], "timeout"]}}, "actor with one GPU: timeout"),
        ("gpus", {"gpus": {"held": [["gpu01", "0", "GPU-1"]]}}, "gpu02: 0 actors with a GPU / 1"),
        ("tune", {"tune": {"problem": "No module named 'pandas'"}}, "No module named 'pandas'"),
        (
            "tune",
            {"tune": {"best": 3, "iterations": {"4": 1, "3": 8}, "errors": [], "seconds": 1}},
            "best trial: 3",
        ),
        (
            "tune",
            {"tune": {"best": 4, "iterations": {"4": 8, "3": 8}, "errors": [], "seconds": 1}},
            "no trial early",
        ),
        (
            "token",
            {"no_token": {"refused": False, "rc": 0, "output": "ok"}},
            "a client without token: was accepted",
        ),
        ("token", {"no_token": {}}, "driver: the driver sent no report of it"),
    ],
)
def test_each_fault_of_a_cluster_has_its_words(check: str, change: dict[str, Any], words: str) -> None:
    verdict = judged(formed(**change))[check]
    assert verdict.outcome is Outcome.FAILED
    assert words in reported(verdict)


@pytest.mark.parametrize(
    ("trial", "words"),
    [
        ({"where": "gpu03"}, "trial: runs on gpu03 / runs on gpu02"),
        ({"where": ""}, "trial: did not run within 120 s / runs on gpu02 with one GPU"),
        ({"where": "", "error": "RayTaskError: no"}, "trial: RayTaskError: no / runs on gpu02 with one GPU"),
        ({"devices": "0,1"}, "CUDA_VISIBLE_DEVICES of the trial: 0,1 / one GPU"),
        ({"devices": ""}, "CUDA_VISIBLE_DEVICES of the trial: not set / one GPU"),
    ],
)
def test_each_fault_of_a_trial_with_a_gpu_has_its_words(trial: dict[str, str], words: str) -> None:
    trials = {"gpu02": {**TRIAL, "where": "gpu02", **trial}}
    verdict = judged(formed(tune_gpus={"trials": trials, "patience": 120.0}))["tune_gpus"]
    assert reported(verdict) == words


def test_a_trial_with_a_gpu_is_never_a_pass_by_absence() -> None:
    none = judged(formed(tune_gpus={"trials": {}, "patience": 120.0}))["tune_gpus"]
    assert "did not run within 120 s" in reported(none)
    assert judged(formed(tune_gpus={}))["tune_gpus"].outcome is Outcome.FAILED
    unknown = {"gpu02": {**TRIAL, "where": "gpu02", "uuid": ""}}
    for facts in (
        formed(tune_gpus={"trials": unknown, "patience": 1.0}),
        formed(tune={"problem": "no module"}),
    ):
        assert judged(facts)["tune_gpus"].outcome is Outcome.NOT_CHECKED
    for share, tune in ((Share(2, 0), True), (Share(2, 1), False)):
        assert checks.tune_gpus("gpu02", formed(), share, tune).outcome is Outcome.NOT_APPLICABLE


def test_devices_that_cannot_be_distinguished_are_no_pass() -> None:
    held = [[node, "0", "" if node == "gpu03" else f"GPU-{node}"] for node in NODES]
    verdict = judged(formed(gpus={"held": held}))["gpus"]
    assert verdict.outcome is Outcome.NOT_CHECKED
    assert "gpu03" in verdict.reason


def with_node(facts: ClusterFacts, node: str, here: NodeFacts, *alive: str) -> ClusterFacts:
    known = {name: {"cpu": 2.0, "gpu": 1.0} for name in alive}
    driver = {**facts.driver, "nodes": {"alive": known}}
    return replace(facts, nodes={**facts.nodes, node: here}, driver=driver)


def test_a_worker_that_did_not_come_is_named_with_its_reason() -> None:
    late = NodeFacts(silent="its task told nothing")
    absent = NodeFacts({"problem": {"what": "ray", "problem": "Ray cannot be imported"}})
    facts = with_node(with_node(formed(), "gpu02", late), "gpu03", absent, "gpu01")
    verdict = checks.nodes(facts)
    assert "gpu02: missing: its task told nothing" in reported(verdict)
    assert "gpu03: missing: Ray cannot be imported" in reported(verdict)
    assert checks.tasks("gpu02", facts).outcome is Outcome.NOT_CHECKED


def test_a_dead_head_is_one_fault_and_not_its_workers() -> None:
    waited = NodeFacts({"problem": {"what": "head", "problem": "no head answered"}})
    facts = formed()
    for node in ("gpu02", "gpu03"):
        facts = with_node(facts, node, waited)
    facts = with_node(facts, "gpu01", NodeFacts(silent="exit status 137: Killed"))
    assert (
        reported(checks.nodes(facts))
        == "head on gpu01: exit status 137: Killed / a head that the workers can join"
    )


def test_no_gpus_of_a_node_that_never_came_are_missed() -> None:
    facts = with_node(formed(), "gpu02", NodeFacts(silent="its task told nothing"), "gpu01", "gpu03")
    held = [[node, "0", f"GPU-{node}"] for node in ("gpu01", "gpu03")]
    verdict = checks.gpus(replace(facts, driver={**facts.driver, "gpus": {"held": held}}))
    assert (verdict.outcome, verdict.reason) == (Outcome.NOT_CHECKED, "gpu02: see ray.nodes")


def test_a_stranger_among_the_nodes_is_found() -> None:
    facts = with_node(formed(), "gpu02", formed().nodes["gpu02"], *NODES, "login1")
    assert "also alive: login1" in reported(checks.nodes(facts))


def test_a_token_on_a_command_line_is_found() -> None:
    seen = NodeFacts({"token": {"set": True, "exposed": 2}})
    facts = with_node(formed(), "gpu03", seen, *NODES)
    assert "gpu03: the token is on 2 command lines" in reported(checks.token(facts, True))
    assert checks.token(replace(facts, version="2.49.1"), True).outcome is Outcome.NOT_CHECKED


def test_a_worker_that_stays_is_found() -> None:
    stays = NodeFacts({"problem": {"what": "leave", "problem": "Ray still ran 60 s after the head was lost"}})
    assert "Ray still ran" in reported(checks.head_lost("gpu03", with_node(formed(), "gpu03", stays, *NODES)))
    assert checks.head_lost("gpu01", formed()).outcome is Outcome.NOT_APPLICABLE


def test_what_is_left_is_reported_and_no_answer_is_no_pass() -> None:
    assert reported(checks.left("process 12 raylet")) == "left behind: process 12 raylet / nothing"
    assert checks.left("").outcome is Outcome.PASSED
    assert checks.left(None).outcome is Outcome.NOT_CHECKED


CASES: Table = {
    checks.alone: [
        ("passed [0]", "gpu01", lone(), Share(2, 1)),
        ("configure: Ray", "gpu01", NodeFacts(silent="its task told nothing"), Share(2, 1)),
        ("configure: driver", "gpu01", lone(problem={"what": "driver", "problem": "no answer"}), Share(2, 1)),
        (
            "monitor: port [1]",
            "gpu01",
            lone(problem={"what": "port", "problem": "port 1 (port) is taken by x"}),
            Share(2, 1),
        ),
        (
            "configure: network interface",
            "gpu01",
            lone(problem={"what": "interface", "problem": "no ib9"}),
            Share(2, 1),
        ),
        ("configure: Ray", "gpu01", lone(problem={"what": "ray", "problem": "no ray"}), Share(2, 1)),
        ("configure: nodes", "gpu01", lone(nodes={}), Share(2, 1)),
        (
            "configure: CPUs of gpu01; GPUs of gpu01 [4, 2, 0.5, 1, 0]",
            "gpu01",
            lone(nodes={"alive": {"gpu01": {"cpu": 4.0, "gpu": 0.5}}}),
            Share(2, 1),
        ),
        ("configure: task [0]", "gpu01", lone(tasks={"problem": "GetTimeoutError"}), Share(2, 1)),
        ("configure: task [0]", "gpu01", lone(tasks={}), Share(2, 1)),
        ("configure: actor [0]", "gpu01", lone(actors={"ran": {"gpu01": "gpu02"}}), Share(2, 1)),
        ("configure: ray start [3]", "gpu01", lone(ended={"outlived": 3}), Share(2, 1)),
        ("configure: ray start [0]", "gpu01", lone(ended={}), Share(2, 1)),
    ],
    checks.nodes: [
        ("passed [2]", formed()),
        ("not applicable", replace(formed(), requested={"gpu01": Share(2, 1)})),
        ("monitor: nodes [2]", replace(formed(), requested=dict.fromkeys(("gpu01", "gpu02"), Share(2, 1)))),
        (
            "monitor: CPUs of gpu02; GPUs of gpu02 [2, 4, 1, 2, 2]",
            replace(formed(), requested={**SHARES, "gpu02": Share(4, 2)}),
        ),
        ("monitor: head on gpu01", replace(formed(), nodes={}, driver={})),
        ("monitor: gpu02", with_node(formed(), "gpu02", NodeFacts(), "gpu01", "gpu03")),
        (
            "monitor: gpu02",
            with_node(
                formed(), "gpu02", NodeFacts({"problem": {"what": "port", "problem": "p"}}), "gpu01", "gpu03"
            ),
        ),
        (
            "monitor: head on gpu01; gpu02",
            with_node(
                with_node(formed(), "gpu01", NodeFacts(silent="died")),
                "gpu02",
                NodeFacts({"problem": {"what": "port", "problem": "p"}}),
                "gpu03",
            ),
        ),
        ("monitor: nodes", with_node(formed(), "gpu02", formed().nodes["gpu02"], *NODES, "login1", "a")),
    ],
    checks.tasks: [
        ("passed", "gpu02", formed()),
        ("monitor: task", "gpu02", formed(tasks={"ran": {}})),
        ("monitor: driver", "gpu02", formed(tasks={"problem": "x"})),
        ("monitor: driver", "gpu02", formed(tasks={})),
        ("monitor: driver", "gpu02", replace(formed(tasks={}), nodes={"gpu01": NodeFacts(silent="died")})),
        ("not checked", "gpu02", formed(nodes={})),
        ("not checked", "gpu09", formed()),
        ("not applicable", "gpu02", replace(formed(), requested={"gpu02": Share(2, 1)})),
    ],
    checks.actors: [
        ("passed", "gpu02", formed()),
        (
            "monitor: actor; counts [1, 1, 1, 2]",
            "gpu02",
            formed(actors={"ran": {"gpu02": "gpu03"}, "counted": {"gpu02": [1, 1]}}),
        ),
        ("not checked", "gpu02", formed(actors={"ran": {"gpu02": "gpu02"}})),
    ],
    checks.objects: [
        ("passed", "gpu02", formed()),
        (
            "monitor: head to node; node to head [90]",
            "gpu02",
            formed(
                objects={"sent": {"gpu02": "timeout"}, "fetched": {"gpu02": False}, "rates": {"gpu02": 90}}
            ),
        ),
        ("monitor: head to node; node to head", "gpu02", formed(objects={"sent": {}, "fetched": {}})),
        ("not checked", "gpu09", formed()),
    ],
    checks.gpus: [
        ("passed [3]", formed()),
        ("not applicable", replace(formed(), requested=dict.fromkeys(NODES, Share(2, 0)))),
        ("configure: driver", formed(gpus={})),
        (
            "configure: GPU GPU-1 [2, 0, 1, 2]",
            formed(
                gpus={"held": [["gpu01", "0", "GPU-1"], ["gpu02", "1", "GPU-1"], ["gpu03", "0", "GPU-3"]]}
            ),
        ),
        (
            "configure: actor with one GPU [2]",
            formed(
                gpus={
                    "held": [["gpu01", "0", "GPU-1"], ["gpu02", "0", ""], ["gpu03", "0", "GPU-3"], "timeout"]
                }
            ),
        ),
        (
            "configure: gpu01; gpu03 [2, 1, 0, 1, 3]",
            formed(
                gpus={"held": [["gpu01", "0", "GPU-1"], ["gpu01", "1", "GPU-2"], ["gpu02", "0", "GPU-3"]]}
            ),
        ),
    ],
    checks.tune: [
        ("passed [5]", formed()),
        ("configure: driver", formed(tune={})),
        (
            "configure: trial; best trial [4, 7, 4, 8, 1]",
            formed(tune={"best": 4, "iterations": {"4": 7, "3": 2}, "errors": ["e"], "seconds": 1}),
        ),
        (
            "configure: best trial; ASHA [3, 8, 4, 8, 4, 8, 3, 8, 1]",
            formed(tune={"best": 3, "iterations": {"4": 8, "3": 8}, "errors": [], "seconds": 1}),
        ),
    ],
    checks.token: [
        ("passed", formed(), True),
        ("not applicable", formed(), False),
        ("not checked [2.51, 2.52]", replace(formed(), version="2.51.9"), True),
        ("passed", replace(formed(), version="2.52"), True),
        ("passed", replace(formed(), version=""), True),
        ("configure: driver", formed(no_token={}, token={"problem": "no"}), True),
        (
            "configure: a client without token [0]",
            formed(no_token={"refused": False, "rc": 0, "output": "ok"}),
            True,
        ),
        ("not checked", replace(formed(), nodes={}), True),
        (
            "configure: gpu03; gpu03 [2]",
            with_node(formed(), "gpu03", NodeFacts({"token": {"set": False, "exposed": 2}}), *NODES),
            True,
        ),
    ],
    checks.head_lost: [
        ("passed [5, 1]", "gpu02", formed()),
        ("not applicable", "gpu01", formed()),
        ("not checked", "gpu09", formed()),
        ("configure: worker", "gpu02", replace(formed(), nodes={"gpu01": NodeFacts({"killed": {}})})),
        ("not checked", "gpu02", replace(formed(), nodes={"gpu02": formed().nodes["gpu02"]})),
        ("configure: worker", "gpu02", with_node(formed(), "gpu02", NodeFacts({"ended": {}}), *NODES)),
        ("passed [2, 0]", "gpu02", with_node(formed(), "gpu02", NodeFacts({"left": {"seconds": 2}}), *NODES)),
    ],
    checks.left: [
        ("monitor: left behind; left behind [1, 2]", "a 1\nb 2"),
        ("passed", ""),
        ("not checked", None),
    ],
}


@pytest.mark.parametrize(("check", "given", "expected"), rows_of(CASES))
def test_each_case_has_its_verdict(check: Callable[..., Verdict], given: list[Any], expected: str) -> None:
    assert told(check(*given)) == expected


# --- payloads


@pytest.mark.parametrize("path", [Path(ray_node.__file__), DRIVER], ids=lambda path: path.stem)
def test_payloads_are_python_3_6_and_need_only_what_they_test(path: Path) -> None:
    assert imported(path) <= sys.stdlib_module_names | {"ray"}


def plan(**change: Any) -> dict[str, Any]:
    nodes = {node: {"address": "127.0.0.1", "cpus": 2, "gpus": 0} for node in NODES}
    return {
        "nodes": nodes,
        "port": 20000,
        "blocks": 1,
        "interface": None,
        "marker": "ab12cd34",
        "temp": "/tmp",
        "leave": 60,
        **change,
    }


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


def test_an_interface_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "gpu01")
    with pytest.raises(Failure, match=r"interface ib9 has no IPv4 address here; there are: .*lo") as caught:
        ray_node.own_address(plan(interface="ib9"))
    assert caught.value.kind == "interface"


@pytest.mark.parametrize(("address", "stride"), [("10.0.0.1", 1), ("127.0.1.2", len(NODES))])
def test_where_a_port_is_taken_the_next_block_is_the_nodes(
    monkeypatch: pytest.MonkeyPatch, address: str, stride: int
) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "gpu01")
    held = {
        20007,
        20000 + stride * ray_node.width_of(plan()),
    }  # the last port of one block, the first of the next
    monkeypatch.setattr(ray_node, "taken", held.__contains__)
    assert ray_node.free_ports(plan(blocks=5), address) == 20000 + 2 * stride * ray_node.width_of(plan())
    with pytest.raises(Failure, match=r"port 20007 \(ray-client-server-port\) is taken"):
        ray_node.free_ports(plan(), address)  # the site names the ports


def test_a_port_that_is_taken_is_named_with_its_holder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "gpu01")
    port = free_port()
    program = f"import socket, time; s = socket.create_server(('127.0.0.1', {port})); print(); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-u", "-c", program], stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline()
            monkeypatch.setattr(ray_node, "LAST_PORT", 65535)
            with pytest.raises(Failure) as caught:
                ray_node.free_ports(plan(port=port), "10.0.0.1")
        finally:  # else a failure would wait for its end
            holder.kill()
    assert caught.value.kind == "port"
    assert f"port {port} (port) is taken by python" in str(caught.value)
    assert f"(pid {holder.pid})" in str(caught.value)


def test_processes_and_folders_that_are_left_are_found_and_removed(tmp_path: Path) -> None:
    stem = f"{tmp_path}/r4071cc"
    folder = Path(stem + "hgpu01")
    folder.mkdir()
    marked = {**os.environ, ray_node.MARK: "4071ccab12cd/head/gpu01"}
    one = subprocess.Popen(["sleep", "60"], env=marked)
    other = subprocess.Popen(["sh", "-c", 'exec sleep 60 >"$0"', f"{folder}/log"])
    try:
        wait_for((folder / "log").exists, "the second one runs")
        found = set(shell(leftovers_command("4071ccab12cd", stem)).splitlines())
        assert found == {f"process {one.pid} sleep 60 ", f"process {other.pid} sleep 60 ", f"folder {folder}"}
        shell(remove_command((one.pid, other.pid), stem))
        assert (one.wait(10), other.wait(10)) == (-9, -9)
    finally:
        one.kill()
        other.kill()
    assert shell(leftovers_command("4071ccab12cd", stem)) == ""


def shell(command: str) -> str:
    return subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False).stdout


def test_what_a_node_of_ray_reported_and_what_is_absent() -> None:
    assert (ray.NodeFacts().what, ray.NodeFacts().problem) == ("", "")
    silent = ray.NodeFacts(silent="killed")
    assert (silent.what, silent.problem) == ("step", "killed")
    failed = ray.NodeFacts({"problem": {"what": "port", "problem": "port 1 (x) is taken"}}, silent="killed")
    assert (failed.what, failed.problem) == ("port", "port 1 (x) is taken")
    facts = ray.ClusterFacts({}, "a")
    assert (facts.nodes, facts.driver, facts.version, facts.token, facts.alive) == ({}, {}, "", True, {})


SHARE = ray.Share(2, 1)
UP = {"cpu": 2.0, "gpu": 1.0}


def cluster(nodes: dict[str, ray.NodeFacts], *alive: str, **driver: Any) -> ray.ClusterFacts:
    known = {"alive": dict.fromkeys(alive, UP)}
    return ray.ClusterFacts({"a": SHARE, "b": SHARE}, "a", nodes, {"nodes": known, **driver}, "2.60.0")


def test_a_cluster_that_was_never_started() -> None:
    never = Finding("head on a", "was not started", "a head that the workers can join")
    assert as_reported(ray.nodes(cluster({}))) == (Outcome.FAILED, "", (never,), ())
    fine = {"a": ray.NodeFacts({"ended": {}})}
    assert ray.nodes(cluster(fine, "a")).findings == (Finding("b", "missing: was not started", "alive"),)
    joined = {**fine, "b": ray.NodeFacts({"ended": {}})}
    assert ray.nodes(cluster(joined, "a")).findings == (
        Finding("b", "missing: its worker started but did not join", "alive"),
    )
    assert ray.nodes(cluster(joined, "a", "b")).outcome is Outcome.PASSED


@pytest.mark.parametrize(("what", "named"), [("head", 0), ("step", 0), ("", 0), ("ray", 1), ("port", 1)])
def test_of_a_dead_head_only_faults_of_their_own_are_the_workers(what: str, named: int) -> None:
    worker = ray.NodeFacts({"problem": {"what": what, "problem": "words"}} if what else {})
    found = ray.nodes(cluster({"a": ray.NodeFacts(silent="killed"), "b": worker})).findings
    own = (Finding("b", "missing: words", "alive"),) * named
    assert found == (Finding("head on a", "killed", "a head that the workers can join"), *own)


def test_two_nodes_are_a_cluster_and_one_is_none() -> None:
    two = cluster({}, "a", "b", tasks={"ran": {"a": "a", "b": "c"}})
    assert ray.tasks("a", two).outcome is Outcome.PASSED
    assert ray.tasks("b", two).findings == (Finding("task", "c", "runs on b"),)
    one = replace(two, requested={"b": SHARE})
    lone = (Outcome.NOT_APPLICABLE, "a cluster needs two nodes: see ray.alone", (), ())
    assert as_reported(ray.tasks("b", one)) == lone
    assert as_reported(ray.nodes(one)) == lone


@pytest.mark.parametrize(
    ("version", "judged"),
    [
        ("2.51.9", False),
        ("2.52", True),
        ("2.52.0", True),
        ("2.9.1", False),
        ("3.0.0", True),
        ("2.52.dev1", True),
        ("", True),
    ],
)
def test_the_token_is_of_ray_2_52(version: str, *, judged: bool) -> None:
    facts = replace(formed(no_token={"refused": False, "rc": 0, "output": "hello"}), version=version)
    verdict = ray.token(facts, True)
    if judged:
        assert verdict.findings == (
            Finding("a client without token", "was accepted (exit 0): hello", "refused"),
        )
    else:
        reason = f"Ray {version} has no token authentication: install 2.52 or later, or set ray.token: false"
        assert as_reported(verdict) == (Outcome.NOT_CHECKED, reason, (), ())
    assert as_reported(ray.token(facts, False)) == (
        Outcome.NOT_APPLICABLE, "the cluster file disables Ray's token (ray.token)", (), ()
    )  # fmt: skip
