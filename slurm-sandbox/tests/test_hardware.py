"""The simulated tools speak as the recorded ones do, and show the faults that are put in."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

import pytest
from sandbox_helpers import DATA, wait_for

from slurm_sandbox import collectives, commands, faults, hardware, models
from slurm_sandbox import node_files as render
from slurm_sandbox.api import Sandbox
from slurm_sandbox.collectives import CommunicatorModel, NodeHealth, busbw
from slurm_sandbox.errors import SandboxError

if TYPE_CHECKING:
    from pathlib import Path

RECORDED = DATA / "h200x8"


def on(sandbox: Sandbox, node: str, script: str) -> tuple[int, str]:
    argv = ["srun", "-Q", "-N1", "-w", node, "sh", "-c", script]
    done = commands.run(argv, timeout=60, env=sandbox.env)
    return done.rc, done.stdout


def shape(text: str) -> list[str]:
    """Return the lines with what differs from host to host folded away."""
    text = re.sub(r"GPU-[0-9a-f-]{36}", "UUID", text)
    text = re.sub(r"[0-9A-F]{8}:[0-9A-F]{2}:[0-9A-F]{2}\.0", "BUS", text)
    text = re.sub(r"^\w{3} \w{3} .\d \d\d:\d\d:\d\d \d{4}", "DATE", text, flags=re.MULTILINE)
    return [re.sub(r"\d+", "#", re.sub(r" +", " ", line)).rstrip() for line in text.splitlines()]


def recorded(name: str) -> str:
    lines = (RECORDED / name).read_text().splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith(("$ ", "rc=")))


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("nvidia-smi", "nvidia-smi.txt"),
        ("nvidia-smi -L", "nvidia-smi-L.txt"),
        ("nvidia-smi nvlink -s", "nvlink-s.txt"),
        ("nvidia-smi nvlink -e", "nvlink-e.txt"),
        ("nvidia-smi topo -p2p n", "topo-p2p.txt"),
    ],
)
def test_same_lines_as_recorded(sandbox: Sandbox, command: str, name: str) -> None:
    rc, out = on(sandbox, "gpu01", command)
    assert rc == 0
    assert shape(out) == shape(recorded(name))


@pytest.mark.parametrize("name", ["query-gpu.txt", "query-remap.txt", "query-apps.txt"])
def test_same_header_as_recorded(sandbox: Sandbox, name: str) -> None:
    command = (RECORDED / name).read_text().splitlines()[0].removeprefix("$ ")
    _, out = on(sandbox, "gpu01", command)
    lines = recorded(name).splitlines()
    assert out.splitlines()[0] == lines[0]
    assert len(out.splitlines()) == len(lines)


def test_query_has_the_same_labels_as_recorded(sandbox: Sandbox) -> None:
    _, out = on(sandbox, "gpu01", "nvidia-smi -q")
    labels = [line.partition(" : ")[0].rstrip() for line in shape(out)]
    assert labels == [line.partition(" : ")[0].rstrip() for line in shape(recorded("nvidia-smi-q.txt"))]


def test_nvidia_smi_shows_the_sections_that_are_asked_for(sandbox: Sandbox) -> None:
    rc, out = on(sandbox, "gpu01", "nvidia-smi -q -d ROW_REMAPPER,TEMPERATURE -i 1,3")
    assert rc == 0
    assert [line.strip() for line in out.splitlines() if line.startswith("    ") and line[4] != " "] == [
        "Remapped Rows",
        "Temperature",
    ] * 2
    rc, out = on(sandbox, "gpu01", "nvidia-smi -q -d NONSENSE")
    assert (rc, out.split(":")[0]) == (2, "Invalid display type")


def test_xml_has_the_same_elements_as_recorded(sandbox: Sandbox) -> None:
    _, out = on(sandbox, "gpu01", "nvidia-smi -q -x -i 0")
    kept = DATA / "simulated" / "nvidia-smi-q-x-of-one-gpu.xml"
    ours, theirs = (ET.fromstring(text) for text in (out, kept.read_text()))
    assert [e.tag for e in ours.iter()] == [e.tag for e in theirs.iter()]


def test_unknown_field(sandbox: Sandbox) -> None:
    rc, out = on(sandbox, "gpu01", "nvidia-smi --query-gpu=index,nonsense --format=csv")
    assert rc == 2
    assert 'Field "nonsense" is not a valid field to query.' in out


def test_filter_by_gpu(sandbox: Sandbox) -> None:
    _, out = on(sandbox, "gpu01", "nvidia-smi -i 2,5 --query-gpu=index --format=csv,noheader")
    assert out.split() == ["2", "5"]


def test_uuids_are_unique_across_the_fleet(sandbox: Sandbox) -> None:
    argv = ["srun", "-N4", "nvidia-smi", "--query-gpu=uuid,serial", "--format=csv,noheader"]
    lines = commands.run(argv, timeout=60, env=sandbox.env).stdout.splitlines()
    assert len(lines) == 32
    assert len({word for line in lines for word in line.split(", ")}) == 64


def test_overlay_and_host(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "own").write_text("the host's own")
    _, out = on(sandbox, "gpu03", f"cat /etc/os-release {tmp_path}/own; cat /sys/class/infiniband/*/ports/1/state")
    assert 'VERSION_ID="24.04"' in out
    assert "the host's own" in out
    assert out.count("4: ACTIVE") == 8


def test_uname_answers_in_an_order_of_its_own(sandbox: Sandbox) -> None:
    asked = ("uname", "uname -n", "uname -mr", "uname --machine -r", "uname -nr", "uname -o", "uname -a")
    _, out = on(sandbox, "gpu01", "; ".join(asked))
    kernel = "6.8.0-79-generic"
    *lines, whole = out.splitlines()
    assert lines == ["Linux", "gpu01", *[f"{kernel} x86_64"] * 2, f"gpu01 {kernel}", "GNU/Linux"]
    assert whole.startswith(f"Linux gpu01 {kernel} #")
    assert whole.endswith(" x86_64 x86_64 x86_64 GNU/Linux")
    rc, out = on(sandbox, "gpu01", "uname --nonsense 2>&1")
    assert rc != 0
    assert "nonsense" in out


@pytest.mark.parametrize("text", ["", "\n", "one\n", "no end", "one\ntwo", "one\n\n", "a\\tb  \n", "  x\n"])
def test_cat_shows_a_file_as_it_is(sandbox: Sandbox, text: str) -> None:
    path = sandbox.layout.node("gpu02") / "root/etc/sandbox-test"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    _, out = on(sandbox, "gpu02", "cat /etc/sandbox-test; cat - </etc/sandbox-test; echo end")
    path.unlink()
    assert out.startswith(text)
    assert out.endswith("end\n")


def test_a_fault_shows_on_its_node_alone_and_is_healed(sandbox: Sandbox) -> None:
    sandbox.fault("gpu_missing", "gpu02")
    count = "nvidia-smi -L | wc -l"
    assert [on(sandbox, node, count)[1].strip() for node in ("gpu01", "gpu02")] == ["8", "7"]
    sandbox.heal("gpu02")
    assert on(sandbox, "gpu02", count)[1].strip() == "8"


def test_several_faults_in_one_node(sandbox: Sandbox) -> None:
    sandbox.fault("hca_missing", "gpu02", hca="mlx5_3")
    sandbox.fault("no_peermem", "gpu02")
    _, out = on(sandbox, "gpu02", "ls /sys/class/infiniband; cat /proc/modules")
    assert "mlx5_3" not in out
    assert "mlx5_4" in out
    assert "peermem" not in out
    sandbox.heal(kind="no_peermem")
    assert [fault["kind"] for fault in sandbox.status()["faults"]] == ["hca_missing"]


@pytest.mark.parametrize(
    ("kind", "node", "options", "message"),
    [
        ("nonsense", "gpu01", {}, "unknown fault 'nonsense'"),
        ("gpu_missing", "gpu99", {}, "no node 'gpu99'"),
        ("gpu_missing", "gpu01", {"gpu": 17}, "no GPU 17"),
        ("gpu_missing", "gpu01", {"gpus": 1}, "no option gpus"),
    ],
)
def test_wrong_faults(sandbox: Sandbox, kind: str, node: str, options: dict[str, int], message: str) -> None:
    with pytest.raises(SandboxError, match=re.escape(message)):
        sandbox.fault(kind, node, **options)
    assert sandbox.status()["faults"] == []


def test_drained_for_real(sandbox: Sandbox) -> None:
    sandbox.fault("drained", "gpu04", reason="burnt cable")
    rows = commands.run(["sinfo", "-hN", "-o", "%N %t %E"], timeout=30, env=sandbox.env).stdout
    assert "gpu04 drain burnt cable" in rows
    sandbox.heal()
    assert sandbox.status()["nodes"]["gpu04"] == "idle"


def test_prolog_failing_drains_the_node(sandbox: Sandbox) -> None:
    sandbox.fault("prolog_failing", "gpu03")
    commands.run(["srun", "-Q", "-t1", "-w", "gpu03", "--immediate=5", "true"], timeout=60, env=sandbox.env)
    # slurmd tells srun first, and then slurmctld
    wait_for(lambda: sandbox.status()["nodes"]["gpu03"].startswith(("drain", "drng")), "gpu03 is drained")
    sandbox.heal()
    assert on(sandbox, "gpu03", "echo well")[1] == "well\n"


def test_hanging_node(sandbox: Sandbox) -> None:
    sandbox.fault("node_hanging", "gpu03")
    argv = ["timeout", "2", "srun", "-Q", "-w", "gpu03", "true"]
    assert commands.run(argv, timeout=60, env=sandbox.env).rc == 124
    sandbox.heal()
    assert on(sandbox, "gpu03", "echo well")[1] == "well\n"


def test_every_fault_changes_what_the_node_shows() -> None:
    spec = models.model("h200")
    shared = "/state/shared"
    healthy = render.files(hardware.healthy_node("gpu02", 1, 8, spec, shared))
    silent = []
    for name, fault in faults.FAULTS.items():
        if fault.change is None:
            continue
        node = hardware.healthy_node("gpu02", 1, 8, spec, shared)
        faults.apply(node, faults.InjectedFault(name, "gpu02"))
        if render.files(node) == healthy and not node.hidden:
            silent.append(name)
    assert silent == []


# -- nccl-tests ----------------------------------------------------------------------------------------------


def perf(sandbox: Sandbox, options: str, *, nodes: int = 2, timeout: float = 60) -> tuple[int, str]:
    argv = ["srun", "-Q", f"-N{nodes}", "--mpi=pmi2", "--ntasks-per-node=8", "all_reduce_perf", *options.split()]
    done = commands.run(argv, timeout=timeout, env=sandbox.env | {"NCCL_DEBUG": "INFO"})
    return done.rc, done.stdout


def speed(text: str) -> float:
    (row,) = re.findall(r"^ *1073741824 .*", text, re.MULTILINE)
    return float(row.split()[7])


def test_collective_of_all_nodes(sandbox: Sandbox) -> None:
    rc, out = perf(sandbox, "-b 1G -e 1G -g 1")
    assert rc == 0
    hosts = re.findall(r"#  Rank +(\d+) .* on +(\S+) device", out)
    assert [int(rank) for rank, _ in hosts] == list(range(16))
    assert {host for _, host in hosts} == {"gpu01", "gpu02"}
    assert out.count("[send] via NET/IB/0/GDRDMA") == 2
    assert 350 < speed(out) < 400


@pytest.mark.parametrize(
    ("kind", "check"),
    [
        ("slow_node", lambda rc, out: rc == 0 and speed(out) < 200),
        ("no_peermem", lambda rc, out: rc == 0 and speed(out) < 200 and "via NET/IB/0\n" in out),
        ("no_infiniband", lambda rc, out: rc == 0 and speed(out) < 5 and "via NET/Socket/0" in out),
        ("wrong_data", lambda rc, out: rc == 7 and "FAILED" in out),
        ("nccl_crash", lambda rc, out: rc == 3 and "gpu02: Test NCCL failure" in out),
        ("rank_mixup", lambda rc, out: rc == 0 and out.count("gpu02 device  0") == 2),
    ],
)
def test_faults_of_the_fabric(sandbox: Sandbox, kind: str, check: object) -> None:
    sandbox.fault(kind, "gpu02")
    assert callable(check)
    assert check(*perf(sandbox, "-b 1G -e 1G -g 1"))


def test_hanging_collective(sandbox: Sandbox) -> None:
    sandbox.fault("nccl_hang", "gpu02")
    argv = ["timeout", "3", "srun", "-Q", "-N2", "--mpi=pmi2", "all_reduce_perf", "-b", "1G", "-e", "1G"]
    assert commands.run(argv, timeout=60, env=sandbox.env).rc == 124


def test_link_model_is_near_the_recordings() -> None:
    ring = CommunicatorModel({"vm": NodeHealth()}, 8, nvls=False)
    for size, measured in ((2**26, 320.4), (2**28, 346.4), (2**30, 358.8), (2**32, 365.8)):
        assert busbw(ring, "all_reduce", size) == pytest.approx(measured, rel=0.05)


def test_a_slow_link_matters_to_its_pair_alone() -> None:
    slow, good = NodeHealth(links={"b": 0.3}), NodeHealth()
    pair = busbw(CommunicatorModel({"a": slow, "b": good}, 8), "all_reduce", 2**30)
    other = busbw(CommunicatorModel({"a": slow, "c": good}, 8), "all_reduce", 2**30)
    assert pair == pytest.approx(0.3 * other, rel=0.05)


def test_numbers_as_nccl_tests_writes_them() -> None:
    assert [collectives.number(value, 8) for value in (66.5, 10360.04, 123456.7)] == ["66.50", "10360.0", "123457"]


def test_expand() -> None:
    assert collectives.expand("gpu[01-03,07]") == ["gpu01", "gpu02", "gpu03", "gpu07"]
    assert collectives.expand("gpu01") == ["gpu01"]
