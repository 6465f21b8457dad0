"""The nccl suite on a real Slurm with simulated NCCL: each fault leads to the right verdict on the right part."""

from __future__ import annotations

import re
import signal
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from framework_helpers import ends, message, run_suite
from nccl_examples_helpers import toolchain
from paths import ROOT
from plugin_helpers import Run, on, run_pytest
from sandbox_helpers import sandbox_folder

from pytest_gpucluster.core.finding import Finding
from pytest_gpucluster.core.part import Part
from pytest_gpucluster.sandbox import Sandbox
from pytest_gpucluster.sandbox.found_by import FOUND_BY

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

SUITE = str(ROOT / "suites" / "nccl" / "test_nccl.py")
DEADLINE = 30  # seconds of a step, ten times what one takes, so that a hang costs a test no more
NODES = 8
PATIENCE = 1200  # seconds; a run takes a tenth of it at most


@pytest.fixture(scope="module")
def eight() -> Iterator[Sandbox]:
    with sandbox_folder() as folder:
        sandbox = Sandbox(folder / "s")
        sandbox.up(nodes=NODES, gpus_per_node=8)
        yield sandbox


def accept(
    sandbox: Sandbox,
    folder: Path,
    *words: str,
    faults: Iterable[Fault] = (),
    profile: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
    image: str = "",
    **nccl: Any,
) -> Run:
    """Run the suite with a short deadline and these faults in the nodes, and none other.

    `profile`: of unknown hardware, of which only this is stated, and without thresholds.
    """
    sandbox.heal()
    for kind, node, *options in faults:
        sandbox.fault(kind, node, **dict(options))
    plain = yaml.safe_load(sandbox.cluster_file.read_text())
    plain["nccl"] |= nccl
    if image:
        plain |= {"environments": {"default": {"container_image": image}}}
    if profile is not None:
        plain.pop("thresholds", None)
        unstated = {"link_layer": "none", "hcas": 0, "rate": None, "transport": None, "mtu": None}
        plain["profile"] |= {"nccl": [], "fabric": {**unstated, "peer_memory": False, **profile}}
    path = folder / "cluster.yaml"
    path.write_text(yaml.safe_dump(plain))
    argv = ("-p", "no:cacheprovider", f"--cluster={path}", *words)
    own = {**sandbox.env, **(env or {})}
    constants = {"nccl": {"deadline": DEADLINE}}
    return run_pytest(folder, *argv, where=(SUITE,), timeout=PATIENCE, env=own, constants=constants)


def results(run: Run) -> list[dict[str, Any]]:
    return [event for event in run.events if event["event"] == "result"]


def failures(run: Run) -> dict[tuple[str, str], dict[str, Any]]:
    """Return {(check, node): result} of all that failed or broke."""
    return {(it["check"], it["node"]): it for it in results(run) if it["outcome"] in ("failed", "error")}


def ended_by_us(run: Run) -> list[str]:
    """Return the logs of the steps that came to their deadline: their tasks were killed, and no fault kills one."""
    logs = sorted((run.folder / "reports" / "latest" / "steps").glob("*.log"))
    return [log.name for log in logs if f"exit:    {128 + signal.SIGKILL} " in log.read_text()]


def of(result: dict[str, Any], kind: str = "findings") -> Iterator[Finding]:
    """Yield the findings of a result, or its warnings."""
    return (Finding.from_dict(it) for verdict in result["verdicts"] for it in verdict[kind])


def reported(result: dict[str, Any]) -> str:
    """Return all that the verdicts of a result say, in one text."""
    causes = (printed["cause"] for printed in result["verdicts"])
    return "\n".join([result["message"], *causes, *(finding.words for finding in of(result))])


def metrics(run: Run, name: str) -> dict[tuple[str, str], float]:
    """Return {(node, device): value} of a metric."""
    return {
        (it["node"], Part.read(metric["part"]).short): metric["value"]
        for it in results(run)
        for metric in it["metrics"]
        if metric["name"] == name
    }


WHOLE = ("nccl.whole_bandwidth", "")
Fault = tuple[Any, ...]
"""Kind, node, (option, value) ..."""
# name: faults, and all that has to fail: (check, node) -> words of the first finding's part and of the message
CASES: dict[str, tuple[list[Fault], dict[tuple[str, str], tuple[str, str]]]] = {
    "slow-node-and-slow-link": (
        [("slow_node", "gpu03"), ("slow_link", "gpu05", ("peer", "gpu06"))],
        {
            ("nccl.alone_bandwidth", "gpu03"): ("all_reduce 1 GiB", "link model of the sandbox"),
            ("nccl.outlier", "gpu03"): ("all_reduce alone", "below the median"),
            ("nccl.pairs", "gpu03"): ("gpu03", "slow alone, so inside the node"),
            ("nccl.links", ""): ("link gpu05 - gpu06", "gpu05 with gpu06"),
            WHOLE: ("all_reduce 1 GiB", "the rounds of pairs name gpu03, link gpu05 - gpu06"),
        },
    ),
    "no-peermem": (
        [("no_peermem", "gpu04")],
        {("nccl.pairs", "gpu04"): ("gpu04", "gpu04"), ("nccl.whole", ""): ("gpu[03-05]", "NET/IB between")},
    ),
    "no-infiniband": (
        [("no_infiniband", "gpu04")],
        {("nccl.pairs", "gpu04"): ("gpu04", "gpu04"), ("nccl.whole", ""): ("gpu[03-05]", "NET/Socket between")},
    ),
    "only-the-whole-is-slow": (
        [("slow_crowd", "gpu06")],
        {WHOLE: ("all_reduce 1 GiB", "so no node or link is at fault")},
    ),
    # five nodes fail by themselves, each in its own way, and none spoils the others
    "alone": (
        [
            ("wrong_data", "gpu02"),
            ("nccl_crash", "gpu03"),
            ("rank_mixup", "gpu04"),
            ("nccl_hang", "gpu06"),
            ("nccl_hang", "gpu07"),
        ],
        {
            ("nccl.alone", "gpu02"): ("all_reduce 8 B out-of-place", "17 wrong elements"),
            ("nccl.alone", "gpu03"): ("gpu03", "unhandled system error"),
            ("nccl.alone", "gpu04"): ("gpu04 GPU (0000:1b:00)", "ranks 0, 1"),
            ("nccl.alone", "gpu06"): ("gpu06", "hangs: 1 of 1 tasks never ended"),
            ("nccl.alone", "gpu07"): ("gpu07", "hangs: 1 of 1 tasks never ended"),
        },
    ),
}


def test_healthy_nodes_pass_everything_and_their_figures_are_reported(eight: Sandbox, tmp_path: Path) -> None:
    run = accept(eight, tmp_path)
    assert (run.rc, failures(run)) == (0, {}), run.out[-3000:]
    outcomes = [it["outcome"] for it in results(run)]
    # no image: nccl.image_environment is not applicable on any node; no recording, no NVLink between nodes
    assert (outcomes.count("passed"), outcomes.count("not applicable")) == (5 * NODES + 3, NODES + 3)
    busbw = metrics(run, "busbw")
    sizes = {device for node, device in busbw if node == "gpu05"}
    assert {"all_reduce 1 MiB", "all_reduce 4 GiB"} < sizes
    assert busbw["", "all_reduce 4 GiB"] < busbw["gpu05", "all_reduce 4 GiB"]
    assert metrics(run, "latency").keys() == {
        (node, "all_reduce 8 B") for node in ("", *eight.nodes)
    }  # of each node, and of the whole
    pairs = metrics(run, "pair_busbw")
    assert ("gpu01", "with gpu02") in pairs
    assert {node for node, _ in pairs} == set(eight.nodes)
    assert ("gpu05", "all_reduce alone 1 GiB") in metrics(run, "busbw_bound")


@pytest.mark.parametrize("name", CASES)
def test_a_fault_leads_to_the_right_verdict_on_the_right_part(eight: Sandbox, tmp_path: Path, name: str) -> None:
    faults, expected = CASES[name]
    run = accept(eight, tmp_path, faults=faults)
    found = failures(run)
    assert found.keys() == expected.keys(), run.out[-3000:]
    for key, (part, words) in expected.items():
        assert str(next(of(found[key])).part).startswith(part)
        assert words in reported(found[key]), key
    for kind, node, *_ in faults:  # the table says which check finds the fault
        says = FOUND_BY[kind][0]
        assert not says.startswith("nccl.") or {(says, node), (says, "")} & found.keys()
    assert {node for _, node in found if node} <= {fault[1] for fault in faults}
    assert len(ended_by_us(run)) == (name == "alone"), "a hang costs one deadline"
    if name == "slow-node-and-slow-link":
        measure_again(run, eight)


def test_a_node_that_is_slow_at_times_is_accused_and_no_other(eight: Sandbox, tmp_path: Path) -> None:
    faults = [("slow_at_times", "gpu04", ("share", 0.3))]
    run = accept(eight, tmp_path, "--until=95%", "-k", "at_times", faults=faults)
    ((_, result),) = failures(run).items()
    (found,) = of(result)
    assert (result["check"], str(found.part), found.code) == ("nccl.at_times", "gpu04", "slow_at_times")
    assert re.search(
        r"slow in \d+ of 59 measurements \(fleet \d+ of 4\d\d; by chance \S+, corrected for 8 nodes\)", str(found)
    )
    assert next(it for it in result["metrics"] if it["name"] == "free_nodes")["value"] == NODES - 1
    (line,) = (it for it in run.out.splitlines() if it.startswith("rerun:"))
    assert "--until=95%" in line
    assert accept(eight, tmp_path, "--until=0.95", "-k", "at_times").rc == 4


def measure_again(run: Run, sandbox: Sandbox) -> None:
    """The printed command of the link measures that pair, and it is slow again."""
    printed = next(line for line in run.out.splitlines() if "gpu[05-06]" in line and "all_reduce_perf" in line)
    command = printed.removeprefix("reproduce:").strip()
    argv = ["sh", "-c", command]
    done = subprocess.run(argv, check=True, capture_output=True, text=True, env=sandbox.env, timeout=1200)
    (row,) = (line.split() for line in done.stdout.splitlines() if line.split()[:1] == [str(256 << 20)])
    assert float(row[7]) < 200, done.stdout


def outcomes(run: Run, check: str) -> dict[str, tuple[str, str]]:
    """Return {node, '' for all: (outcome, message)} of a check."""
    return {it["node"]: (it["outcome"], it["message"]) for it in results(run) if it["check"] == check}


# --- variables of NCCL


def of_check(run: Run, check: str = "nccl.environment") -> dict[str, dict[str, Any]]:
    """Return {node: result}."""
    return {it["node"]: it for it in results(run) if it["check"] == check}


def spelled(result: dict[str, Any], kind: str = "findings") -> list[str]:
    return [f"{it.part}: {it.measured}" for it in of(result, kind)]


def test_each_setting_is_found_on_its_node_alone_with_its_place(sandbox: Sandbox, tmp_path: Path) -> None:
    adapters = (("name", "NCCL_IB_HCA"), ("value", "mlx5_0,mlx5_1"))
    faults = [("task_variable", "gpu02"), ("nccl_conf", "gpu03"), ("task_variable", "gpu04", *adapters)]
    run = accept(sandbox, tmp_path, "-k", "environment", faults=faults)
    found = of_check(run)
    outcomes = {node: it["outcome"] for node, it in found.items()}
    assert outcomes == {**dict.fromkeys(sandbox.nodes, "failed"), "gpu01": "passed"}, run.out
    of_task, of_file, of_adapters = (spelled(found[node]) for node in ("gpu02", "gpu03", "gpu04"))
    assert of_task[0].startswith("NCCL_PROTO: LL (the environment of the task")
    assert spelled(found["gpu02"], "advisories")[0].startswith("NCCL_PROTO=LL: restricts")
    assert of_file[0].startswith("NCCL_P2P_DISABLE=1: ")
    assert "(/etc/nccl.conf:1)" in of_file[0]
    assert found["gpu03"]["verdicts"][0]["action"] == "configure"
    assert "selects 2 of 8 ports; without mlx5_2:1, mlx5_3:1" in of_adapters[0]


def test_the_image_of_the_steps_is_read_by_one_step(sandbox: Sandbox, tmp_path: Path) -> None:
    image = yaml.safe_load(sandbox.cluster_file.read_text())["container"]["image"]
    topology = ("task_variable", "gpu02", ("name", "NCCL_TOPO_FILE"), ("value", "/opt/topo.xml"))
    words = ("-k", "environment")
    run = accept(sandbox, tmp_path, *words, faults=[topology], image=image, runner="nccl-tests")
    inside, outside = of_check(run, "nccl.image_environment"), of_check(run)
    outcomes = {node: it["outcome"] for node, it in inside.items()}
    assert outcomes == {**dict.fromkeys(sandbox.nodes, "passed"), "gpu02": "failed"}, run.out
    assert "/opt/topo.xml cannot be read here" in spelled(inside["gpu02"])[0]
    assert "it may exist in the image" in spelled(outside["gpu02"], "advisories")[0]
    logs = (run.folder / "reports" / "latest" / "steps").glob("*.log")
    assert len([*logs]) == 1, "one step serves all nodes"


# --- other suites


def test_a_node_without_the_toolchain_of_the_examples_is_found(sandbox: Sandbox, tmp_path: Path) -> None:
    case = '[ "$SLURMD_NODENAME" != gpu02 ] || { echo "nvcc fatal: error: no host compiler"; exit 1; }'
    env = toolchain(tmp_path, case)
    profile = yaml.safe_load(sandbox.cluster_file.read_text())["profile"]
    keys = {"profile": profile, "exports": env, "nccl": {"environment": "frameworks"}, "nccl_examples": {}}
    run = run_suite(sandbox, tmp_path, "test_nccl_examples.py", "-k", "compiled", nodes="gpu[01-02]", **keys)
    found = {item: end for item, end in ends(run).items() if "compiled[" in item}
    assert found == {"test_compiled[gpu01]": "passed", "test_compiled[gpu02]": "failed"}, run.out
    assert message(run, "test_compiled[gpu02]").startswith("nvcc: exit 1: ")
    runs = {end for item, end in ends(run).items() if "compiled_run[" in item}
    assert runs == {"not applicable"}


def test_every_suite_names_the_missing_gpu(sandbox: Sandbox, tmp_path: Path) -> None:
    sandbox.fault("gpu_missing", "gpu02", gpu=5)
    run = run_pytest(tmp_path, on(sandbox), "-m", "slurm or gpu or fabric or nccl", where=())
    failed = [event for event in run.events if event["event"] == "result" and event["outcome"] == "failed"]
    causes = {event["check"]: event["verdicts"][0]["cause"] for event in failed if event["node"] == "gpu02"}
    assert {"nccl.alone", "gpu.count"} <= set(causes), run.out + run.err
    assert set(causes.values()) == {"GPU 5 (0000:c3:00.0) missing: fell off the bus, or not found at boot"}
    (whole,) = (
        event
        for event in run.events
        if event["event"] == "result" and event["nodeid"].endswith("::test_whole_bandwidth[all_reduce]")
    )
    scopes = {
        metric["name"].rpartition(" GiB ")[2] for metric in whole["metrics"] if metric["name"].startswith("busbw ")
    }
    assert scopes == {"3 nodes"}  # those that took part
    (advisory,) = of(whole, "advisories")
    assert str(advisory.measured) == "3 of 4, without gpu02: see nccl.alone"
