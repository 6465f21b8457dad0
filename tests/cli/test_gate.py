"""`gpucluster gate`: exit statuses by context, lines for people, Slurm, Nagios and programs."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from pytest_gpucluster.cli import gate as cli
from pytest_gpucluster.cli import run_command
from pytest_gpucluster.config import load_cluster
from pytest_gpucluster.core.check import Outcome, Verdict
from pytest_gpucluster.core.errors import ConfigError
from pytest_gpucluster.core.finding import Action, Finding, Quantity
from pytest_gpucluster.core.part import GPUS
from pytest_gpucluster.gate import gate
from pytest_gpucluster.gate.baseline import Baseline, encode
from pytest_gpucluster.gate.gate import GateResult, own_node, with_own_gpus
from pytest_gpucluster.gate.judge import CheckResult, node_checks

node_checks(["gpu.*", "os.*"])  # registers all checks


def failed(check: str, action: Action) -> CheckResult:
    finding = Finding(GPUS, Quantity(7), Quantity(8))
    healthy = "made for a test" if action.is_repair else ""
    verdict = Verdict(check, Outcome.FAILED, (finding,), action=action, never_healthy=healthy)
    return CheckResult(check, "failed", verdict)


def result(*judged: CheckResult, **fields: Any) -> GateResult:
    passed = CheckResult("os.drift", "passed", Verdict("os.drift", Outcome.PASSED))
    return GateResult(cluster="prod", node="gpu01", results=(passed, *judged), seconds=1.25, **fields)


@pytest.fixture
def prod(tmp_path: Path) -> str:
    path = tmp_path / "prod.yaml"
    path.write_text(
        f"nodes: gpu[01-03]\nprofile: generic\nslurm: {{partition: batch}}\ngate: {{state: {tmp_path}/state}}\n"
    )
    return str(path)


class Gate:
    """The command where the gate finds something."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], prod: str) -> None:
        self.patch, self.capsys, self.prod, self.out, self.err = monkeypatch, capsys, prod, "", ""

    def run(self, found: GateResult | None, *words: str, node: str = "gpu01") -> int:
        """Return the exit status; None: the gate itself."""
        if found is not None:
            self.patch.setattr(gate, "run_gate", lambda *_: found)
        status = cli.main(["gate", "--node", node, "--cluster", self.prod, *words])
        self.out, self.err = self.capsys.readouterr()
        return status


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], prod: str) -> Gate:
    return Gate(monkeypatch, capsys, prod)


REPAIR = failed("gpu.remapped_rows", Action.VENDOR)
SETTING = failed("gpu.vbios", Action.CONFIGURE)
OF_JOB = failed("gpu.idle_memory", Action.DRAIN)


@pytest.mark.parametrize(
    ("judged", "context", "status"),
    [
        ((), "prolog", 0),
        ((REPAIR,), "prolog", 1),
        ((REPAIR,), "job", 1),
        ((REPAIR,), "health", 0),
        ((OF_JOB,), "job", 0),
        ((SETTING, REPAIR), "prolog", 1),
    ],
)
def test_only_a_repair_that_no_job_caused_takes_the_node_out_of_service(
    ran: Gate, judged: tuple[CheckResult, ...], context: str, status: int
) -> None:
    assert ran.run(result(*judged), "--context", context) == status


def test_the_third_node_stays_in_service(ran: Gate) -> None:
    nodes = ("gpu01", "gpu02", "gpu03")
    assert [ran.run(result(REPAIR), "--context", "prolog", node=node) for node in nodes] == [1, 1, 0]
    assert "the node stays in service: 3 nodes fail gpu.remapped_rows within 60 min" in ran.out


def test_an_error_of_ours_ends_a_prolog_with_0_and_a_shell_with_4(ran: Gate) -> None:
    def broken(*_: Any) -> GateResult:
        raise KeyError("a bug")

    ran.patch.setattr(gate, "run_gate", broken)
    assert ran.run(None, "--context", "prolog") == 0
    assert "a bug" in ran.err
    for words in (["--cluster", "/nowhere.yaml"], ["--node", "gpu09"], ["--budget", "x"]):
        assert ran.run(None, *words, "--context", "health") == 0
        assert ran.err.count("error: ") == 1
        assert ran.run(None, *words) == run_command.WRONG_CONFIG
        assert ran.err.count("error: ") == 1


@pytest.mark.parametrize("end", ["kill -9 $$", "exit 137", "exit 124"])
def test_an_nvidia_smi_that_another_killed_drains_no_node(ran: Gate, tmp_path: Path, end: str) -> None:
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(f"#!/bin/sh\nsleep 1\n{end}\n")
    tool.chmod(0o755)
    ran.patch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    words = ("--profile", "dgx-a100", "--checks", "gpu.driver,gpu.count", "--fresh", "0", "--budget", "60s")
    folder = ("--folder", str(tmp_path / "share"))
    assert ran.run(None, *words, *folder, "--context", "prolog") == 0
    assert not ran.out.startswith("gpucluster: OK")
    ages = [ran.run(None, *words, *folder, "--fresh", fresh) and "s ago" in ran.out for fresh in ("0", "60s")]
    assert ages == [False, True]  # an old answer states its age


@pytest.mark.skipif(os.geteuid() != 0, reason="root gives files to other users")
@pytest.mark.parametrize("of", ["--baseline", "--cluster"])
def test_a_file_of_another_user_takes_no_node_out_of_service(ran: Gate, tmp_path: Path, of: str) -> None:
    path = tmp_path / "shared" / "file"
    path.parent.mkdir()
    path.parent.chmod(0o1777)
    path.write_text(encode(Baseline("prod")) if of == "--baseline" else Path(ran.prod).read_text())
    assert ran.run(result(REPAIR), of, str(path), "--context", "prolog") == 1
    os.chown(path, 4711, -1)
    assert ran.run(result(REPAIR), of, str(path), "--context", "prolog") == 0
    assert f"error: {path} is not used: belongs to another user (4711)" in ran.err


def command(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run `gpucluster gate` as Slurm does: a process, whose status drains the node."""
    argv = [sys.executable, "-m", "pytest_gpucluster", "gate", *words]
    return subprocess.run(argv, env={**os.environ, **env}, capture_output=True, text=True, check=False)


@pytest.mark.thorough
def test_a_wrong_line_in_slurm_conf_or_a_broken_installation_drains_no_node(tmp_path: Path) -> None:
    (tmp_path / "pydantic.py").write_text("raise ImportError('the file server is away')")
    broken, prolog = str(tmp_path), {"SLURM_SCRIPT_CONTEXT": "prolog_slurmd"}
    wrong = ("--context", "prolog", "--chekcs", "x")
    found = [
        command(*wrong),
        command("--context", "prolog", "--fabric", "20s"),
        command("--context", "prologue", **prolog),
        command("--context", "prolog", "--context", "prologue", "--nagios"),
        command("--context", "epilog", PYTHONPATH=broken),
    ]
    assert [done.returncode for done in found] == [0] * 5
    words = ("--chekcs", "--fabric: only with --context job", *["prologue"] * 2, "the file server is away")
    assert [word in done.stderr for word, done in zip(words, found, strict=True)] == [True] * 5
    assert command(*wrong[2:]).returncode == 2, "outside of Slurm it is an error"


def test_a_full_disk_under_the_log_drains_no_node(prod: str) -> None:
    words = ["--cluster", prod, "--node", "gpu01", "--checks", "os.drift", "--context", "prolog"]
    argv = [sys.executable, "-m", "pytest_gpucluster", "gate", *words]
    with Path("/dev/full").open("wb") as full:
        assert subprocess.run(argv, stdout=full, stderr=full, check=False).returncode == 0


@pytest.mark.parametrize(
    ("program", "status"),
    [
        ("echo 'gpucluster:gpu.count 7<8 GPUs'; echo more; exit 1", 1),
        ("echo 'gpucluster: OK: 9 checks judged'", 0),
        ("echo 'Traceback: ...' >&2; exit 1", 0),  # Python itself ends so
        (None, 0),
    ],
)
def test_the_example_prolog_drains_for_findings(tmp_path: Path, program: str | None, status: int) -> None:
    gpucluster, prolog = tmp_path / "gpucluster", tmp_path / "prolog.sh"
    if program:
        gpucluster.write_text(f"#!/bin/sh\n{program}\n")
        gpucluster.chmod(0o755)
    text = (files("pytest_gpucluster") / "examples/gate/prolog.sh").read_text()
    prolog.write_text(text.replace("/opt/gpucluster/bin/gpucluster", str(gpucluster)))
    assert subprocess.run(["sh", prolog], capture_output=True, check=False).returncode == status


def test_drain_needs_the_context_of_a_health_check(ran: Gate) -> None:
    for words in ([], ["--context", "job"]):
        assert ran.run(None, "--drain", *words) == run_command.WRONG_CONFIG
        assert "only with --context health" in ran.err


def test_the_first_line_is_the_reason_and_others_say_what_to_do(ran: Gate) -> None:
    why = "topology: nvidia-smi topo -m did not end within the budget of 8 s"
    hung = CheckResult("gpu.topology", "not checked", why=why)
    ran.run(result(SETTING, REPAIR, OF_JOB, hung, slow=["nvidia-smi topo -m"]))
    first, *repairs, unjudged, slow = ran.out.splitlines()
    assert first == "gpucluster:gpu.remapped_rows 7<8 GPUs (and 2 more)"
    ends = [line.rpartition("(")[2] for line in repairs]
    assert ends == ["configure)", "return to vendor)", "drain; a job may be the cause)"]
    assert unjudged.startswith("not checked: gpu.topology: ")
    assert slow == "slow: nvidia-smi topo -m"
    ran.run(result(SETTING), "--context", "job")
    told = "gpu01: gpucluster: OK: 2 checks judged, failed without a repair of the node: gpu.vbios"
    assert ran.out.splitlines()[0] == told


@pytest.mark.parametrize(
    ("judged", "words", "status"),
    [
        (CheckResult("gpu.count", "not checked", why="x"), "NOT PROVED (gpu.count not checked): 1 check", 3),
        (failed("gpu.count", Action.CONFIGURE), "NOT PROVED (gpu.count failed): 2 checks judged", 3),
        (
            CheckResult("gpu.count", "not applicable", why="x"),
            "OK: 1 check judged, nothing of gpu applies (profile generic)",
            0,
        ),
        (failed("gpu.temperature", Action.MONITOR), "OK: 2 checks judged", 0),  # a job has heated it
    ],
)
def test_a_node_without_a_proof_is_not_ok(ran: Gate, judged: CheckResult, words: str, status: int) -> None:
    found = result(judged, proofs=("gpu.count", "gpu.temperature"), profile="generic")
    assert ran.run(found, "--context", "job") == status
    assert ran.out.startswith(f"gpu01: gpucluster: {words}")
    assert json.loads(ran.out.splitlines()[-1])["fit"] is (status == 0)
    assert ran.run(found, "--context", "prolog") == 0


@pytest.mark.parametrize(
    ("found", "word", "status"),
    [
        (result(), "OK", 0),
        (result(SETTING), "WARNING", 1),
        (result(REPAIR), "CRITICAL", 2),
        (GateResult("prod", "gpu01", (CheckResult("os.drift", "not checked", why="x"),)), "UNKNOWN", 3),
    ],
)
def test_nagios(ran: Gate, found: GateResult, word: str, status: int) -> None:
    assert ran.run(found, "--nagios") == status
    (line,) = ran.out.splitlines()
    assert line.startswith(f"GPUCLUSTER {word} - ")
    assert f"| judged={found.judged} failed={len(found.failed)} seconds=" in line


def test_nagios_gets_its_line_and_unknown_for_every_error(ran: Gate) -> None:
    for words in ("--cluster=/nowhere.yaml", "--budget=abc", "--node=gpu77", "--json", "--bogus"):
        assert ran.run(None, "--nagios", words) == 3
        (line,) = ran.out.splitlines()
        assert line.startswith("GPUCLUSTER UNKNOWN - ")


def test_collect_prints_reasons(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("SLURM_JOB_NODELIST", "gpu[01-03]")
    rows = [{"gate": "gpu01", "fit": True}, {"gate": "gpu02", "fit": False, "why": "gpu.count 7<8 GPUs"}]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(map(json.dumps, rows))))
    assert cli.main(["gate", "--collect"]) == 0
    shown = capsys.readouterr()
    assert shown.out == "--exclude=gpu[02-03]\n"
    assert shown.err == "gpu02: gpu.count 7<8 GPUs\ngpu03: its gate printed no result\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert cli.main(["gate", "--collect"]) == 1
    monkeypatch.setenv("SLURM_STEP_NODELIST", "gpu[1-")
    assert cli.main(["gate", "--collect"]) == run_command.WRONG_CONFIG
    assert "\ngpucluster: error: SLURM_STEP_NODELIST: not a hostlist: " in capsys.readouterr().err


def test_a_check_of_the_user_has_no_place_in_a_gate() -> None:
    assert node_checks(["os.user"]) == []  # the baseline is of another user


def test_this_machine_has_a_name_in_the_cluster_file(monkeypatch: pytest.MonkeyPatch, prod: str) -> None:
    cluster = load_cluster(prod)
    monkeypatch.setattr("socket.gethostname", lambda: "gpu02.example.org")
    assert own_node(cluster, Baseline(), None, {}) == "gpu02"
    assert own_node(cluster, Baseline(), None, {"SLURMD_NODENAME": "gpu03"}) == "gpu03"
    assert own_node(cluster, Baseline(), "gpu01", {"SLURMD_NODENAME": "gpu03"}) == "gpu01"
    monkeypatch.setattr("socket.gethostname", lambda: "login1")
    with pytest.raises(ConfigError, match="has no node login1: name it with --node"):
        own_node(cluster, Baseline(), None, {})


def test_a_job_with_some_of_the_gpus_is_no_node_without_the_others(tmp_path: Path) -> None:
    path = tmp_path / "h100.yaml"
    path.write_text("name: prod\nnodes: gpu01\nprofile: dgx-h100\nslurm: {partition: batch}\n")
    cluster = load_cluster(path)
    for text in ("8", "", "²", "9" * 5000):
        assert with_own_gpus(cluster, "gpu01", {"SLURM_GPUS_ON_NODE": text}) is cluster
    few = with_own_gpus(cluster, "gpu01", {"SLURM_GPUS_ON_NODE": "4"})
    assert few.not_applicable == {"gpu.count": "the job has 4 of 8 GPUs"}


def test_json_has_every_check(ran: Gate) -> None:
    assert ran.run(result(REPAIR, OF_JOB), "--json") == 1
    data = json.loads(ran.out)
    assert (data["node"], data["out_of_service"], data["breaker"]) == ("gpu01", True, "")
    shown = [(it["check"], it["outcome"], it["of_job"]) for it in data["checks"]]
    assert shown[1:] == [("gpu.remapped_rows", "failed", False), ("gpu.idle_memory", "failed", True)]
    assert data["checks"][1]["findings"][0]["action"] == "return to vendor"
