"""The experiment matrix: how a cell is settled, the table at the end, and real launchers and workloads."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from framework_helpers import spelled
from paths import ROOT
from plugin_helpers import Run, names, run_pytest
from sandbox_helpers import sandbox_folder

from pytest_gpucluster.core.check import Finding, Outcome, Verdict
from pytest_gpucluster.plugin.outputs import suite_tables
from pytest_gpucluster.report.run_model import read_run
from pytest_gpucluster.sandbox import Sandbox
from pytest_gpucluster.suites.matrix import checks, speed
from pytest_gpucluster.suites.matrix.checks import Cell, CellWork, State
from slurm_sandbox.api import SandboxError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

SUITE = ROOT / "suites" / "matrix" / "test_matrix.py"
HOST = ("/usr", "/lib", "/lib64", "/etc/alternatives")  # makes an image with a compiler
FRAMEWORKS = ROOT / ".cache" / "frameworks"
RATE = re.compile(r", \d[\d.e+-]* (?:CPUs/task|GB/s)")
NO_PMI = Finding(
    "MPI without PMI on gpu01", "OMPI was not built with SLURM's PMI support", "a world of 4 ranks"
)
LONELY = Finding("singletons", "4 programs, each rank 0 of 1", "one world")
OTHER = Finding("rank 3", "2 times", "once")


def failed(*findings: Finding) -> Verdict:
    return Verdict("mpi.world", Outcome.FAILED, findings)


@pytest.mark.parametrize(
    ("row", "verdict", "expected", "claimed", "state", "why"),
    [
        ("srun", Verdict("x", Outcome.PASSED), {}, True, State.WORKS, ""),
        ("srun", Verdict("x", Outcome.NOT_APPLICABLE, reason="none"), {}, True, State.NOT_APPLICABLE, "none"),
        ("srun", failed(NO_PMI), {}, False, State.EXPECTED, "no PMI support"),
        ("srun_pyxis", failed(LONELY), {}, False, State.EXPECTED, "no PMI support"),
        ("srun", failed(NO_PMI), {}, True, State.BROKEN, "MPI without PMI on gpu01: OMPI was not built"),
        ("srun", failed(OTHER), {}, False, State.BROKEN, "rank 3: 2 times"),
        ("mpirun", failed(LONELY), {}, False, State.BROKEN, "singletons"),
        ("srun", failed(OTHER), {"srun-mpi": "rank 3: 2 times"}, True, State.EXPECTED, "rank 3: 2 times"),
        ("srun", failed(OTHER), {"mpirun-mpi": "old MPI"}, True, State.BROKEN, "rank 3"),
        ("srun", Verdict("x", Outcome.NOT_CHECKED, reason="no rank told"), {}, True, State.BROKEN, "no rank told"),
        ("srun", Verdict("x", Outcome.PASSED), {"srun-mpi": "old MPI"}, True, State.WORKS, ""),
    ],
)  # fmt: skip
def test_how_a_cell_is_settled(
    *,
    row: str,
    verdict: Verdict,
    expected: Mapping[str, str],
    claimed: bool,
    state: State,
    why: str,
) -> None:
    cell = checks.settle(row, "mpi", verdict, expected, pmi_required=claimed)
    assert cell.state is state
    assert cell.why.startswith(why)
    outcome = {State.BROKEN: Outcome.FAILED, State.NOT_APPLICABLE: Outcome.NOT_APPLICABLE}.get(
        state, Outcome.PASSED
    )
    assert checks.cell(cell).outcome is outcome


def test_a_broken_cell_says_launcher_workload_and_part() -> None:
    found = checks.cell(Cell("srun_pyxis", "mpi", State.BROKEN, "x", failed(OTHER))).findings
    assert [finding.part for finding in found] == ["srun + Pyxis with MPI: rank 3"]
    assert checks.cell(Cell("srun", "cpu", State.BROKEN, "why")).findings[0].measured == "why"


NODES = ("gpu01", "gpu02")
GOOD = tuple((node, "8") for node in NODES for _ in range(2))


@pytest.mark.parametrize(
    ("reported", "problem", "printed"),
    [
        (GOOD, "", ""),
        ((*GOOD[:3], ("gpu02", "7")), "", "gpu02: 7 GPUs / 8 GPUs"),
        ((*GOOD[:3], ("gpu02", "nvidia-smi: not found")), "", "gpu02: nvidia-smi: not found / 8 GPUs"),
        (GOOD[:3], "", "gpu02: 1 tasks reported / 2 tasks"),
        ((*GOOD, ("gpu09", "8")), "", "gpu09: ran tasks but was not requested / none"),
        ((), "hangs", "step: hangs / 4 tasks that end by themselves"),
        ((), "", "gpu01: 0 tasks reported / 2 tasks"),
    ],
)
def test_work_without_messages(reported: tuple[tuple[str, str], ...], problem: str, printed: str) -> None:
    verdict = checks.work(CellWork(NODES, 2, reported, "8", "GPUs", problem))
    assert verdict.outcome is (Outcome.FAILED if printed else Outcome.PASSED)
    assert printed in "; ".join(f"{it.part}: {it.measured} / {it.expected}" for it in verdict.findings)


EXACT: list[tuple[Callable[[], Verdict], str, str, list[str], list[str]]] = [
    (lambda: checks.cell(Cell("srun", "cpu", State.WORKS)), "passed", "", [], []),
    (lambda: checks.cell(Cell("srun", "cpu", State.EXPECTED, "old", failed(OTHER))), "passed", "", [], []),
    (
        lambda: checks.cell(Cell("srun", "cpu", State.NOT_APPLICABLE, "none")),
        "not applicable",
        "none",
        [],
        [],
    ),
    (
        lambda: checks.cell(Cell("mpirun", "gpu", State.BROKEN, "why")),
        "failed",
        "",
        ["mpirun with GPU: why / works"],
        [],
    ),
    (
        lambda: checks.cell(Cell("srun_framework", "nccl", State.BROKEN, "why", failed())),
        "failed",
        "",
        ["srun + Pyxis, framework image with NCCL: why / works"],
        [],
    ),
    (
        lambda: checks.cell(Cell("srun_pyxis", "mpi", State.BROKEN, "x", failed(OTHER, LONELY))),
        "failed",
        "",
        [
            "srun + Pyxis with MPI: rank 3: 2 times / once",
            "srun + Pyxis with MPI: singletons: 4 programs, each rank 0 of 1 / one world",
        ],
        [],
    ),
    (lambda: checks.work(CellWork(NODES, 2, GOOD, "8", "GPUs")), "passed", "", [], []),
    (
        lambda: checks.work(CellWork(NODES, 2, (), "8", "GPUs", "hangs")),
        "failed",
        "",
        ["step: hangs / 4 tasks that end by themselves"],
        [],
    ),
    (
        lambda: checks.work(CellWork(NODES, 2, GOOD[:3], "8", "GPUs", "hangs")),
        "failed",
        "",
        ["step: hangs / 4 tasks that end by themselves", "gpu02: 1 tasks reported / 2 tasks"],
        [],
    ),
    (
        lambda: checks.work(CellWork(NODES, 2, (), "8", "GPUs")),
        "failed",
        "",
        ["gpu01: 0 tasks reported / 2 tasks", "gpu02: 0 tasks reported / 2 tasks"],
        [],
    ),
    (
        lambda: checks.work(CellWork(NODES, 2, (*GOOD, ("gpu09", "8"), ("", "8")), "8", "GPUs")),
        "failed",
        "",
        [
            "an unknown host: ran tasks but was not requested / none",
            "gpu09: ran tasks but was not requested / none",
        ],
        [],
    ),
    (
        lambda: checks.work(CellWork(NODES, 2, (*GOOD[:3], ("gpu02", "7")), "8", "GPUs")),
        "failed",
        "",
        ["gpu02: 7 GPUs / 8 GPUs"],
        [],
    ),
    (
        lambda: checks.work(CellWork(NODES, 2, (*GOOD[:3], ("gpu02", "7")), "8")),
        "failed",
        "",
        ["gpu02: 7 / 8"],
        [],
    ),
    (
        lambda: checks.work(CellWork(NODES, 2, (*GOOD[:3], ("gpu02", "nvidia-smi: not found")), "8", "GPUs")),
        "failed",
        "",
        ["gpu02: nvidia-smi: not found / 8 GPUs"],
        [],
    ),
]


@pytest.mark.parametrize(("judge", "outcome", "reason", "findings", "metrics"), EXACT)
def test_verdicts_to_the_letter(
    judge: Callable[[], Verdict], outcome: str, reason: str, findings: list[str], metrics: list[str]
) -> None:
    assert spelled(judge()) == (outcome, reason, findings, metrics)


def test_a_long_reason_is_cut_in_the_table() -> None:
    assert Cell("srun", "cpu", State.BROKEN, "x" * 160).note == "x" * 160
    assert Cell("srun", "cpu", State.BROKEN, "x" * 161).note == "x" * 157 + "..."


def test_first_words_of_a_verdict() -> None:
    assert checks.first_words(failed(OTHER, LONELY)) == "rank 3: 2 times"
    assert checks.first_words(Verdict("x", Outcome.NOT_CHECKED, reason="no rank")) == "no rank"
    assert checks.first_words(failed()) == "could not be tried"
    assert checks.name_of("srun_pyxis", "mpi") == "srun_pyxis-mpi"


def test_a_want_of_pmi_is_expected_of_srun_for_mpi_alone() -> None:
    settled = checks.settle("srun", "mpi", failed(NO_PMI), {}, pmi_required=False)
    assert (settled.state, settled.verdict) == (State.EXPECTED, failed(NO_PMI))
    assert checks.settle("srun", "nccl", failed(NO_PMI), {}, pmi_required=False).state is State.BROKEN
    assert checks.settle("mpirun", "mpi", failed(NO_PMI), {}, pmi_required=False).state is State.BROKEN


def test_a_table_of_a_suite_is_in_its_order_and_has_its_notes_below() -> None:
    run = read_run([])
    put = [
        ("mpirun", "MPI", "fails", "no PMI", (1, 1)),
        ("srun", "MPI", "fails", "no PMI", (0, 1)),
        ("srun", "CPU", "works", "", (0, 0)),
    ]
    for row, column, text, note, place in put:
        cell = {"title": "matrix", "row": row, "column": column, "text": text, "note": note, "place": place}
        run.take({"event": "result", "suite": "matrix", "node": "", "outcome": "passed", "cells": [cell]})
    (table,) = suite_tables(run, 200)
    assert [line.split() for line in table] == [
        ["matrix"],
        ["CPU", "MPI"],
        ["------", "-----", "---------"],
        ["srun", "works", "fails", "[1]"],
        ["mpirun", "fails", "[1]"],
        ["[1]", "no", "PMI"],
    ]
    assert not suite_tables(read_run([]), 200)


# --- on virtual nodes


def rates_of(run: Run) -> dict[str, tuple[float, str]]:
    """Return {ROW-COLUMN: (rate, unit)} of the metrics."""
    return {
        metric["device"]: (metric["value"], metric["unit"])
        for event in run.events
        if event["event"] == "result"
        for verdict in event["verdicts"]
        for metric in verdict["metrics"]
        if metric["name"] == "matrix_rate"
    }


def accept(
    sandbox: Sandbox,
    folder: Path,
    matrix: dict[str, Any] | None,
    *options: str,
    mpi: dict[str, Any] | None = None,
    nccl: dict[str, Any] | None = None,
    **environments: Any,
) -> Run:
    keys: dict[str, Any] = yaml.safe_load(sandbox.cluster_file.read_text())
    keys |= {"environments": environments, "nccl": keys["nccl"] | (nccl or {})}
    keys |= {"matrix": {"nodes": 2, **matrix}} if matrix is not None else {}
    keys |= {"mpi": {"deadline": "60s", "ntasks_per_node": 2, **mpi}} if mpi is not None else {}
    file = folder / "site.yaml"
    file.write_text(yaml.safe_dump(keys))
    constants = {"matrix": {"ntasks_per_node": 2}}
    return run_pytest(folder, f"--cluster={file}", *options, where=[str(SUITE)], constants=constants)


def table_of(run: Run) -> dict[str, str]:
    """Return {ROW-COLUMN: text [note]} of what the summary shows; RATE stands for a rate, whose number varies."""
    rows = {name: key for key, name in checks.ROWS.items()}
    columns = {name: key for key, name in checks.COLUMNS.items()}
    found = {}
    for event in run.events:
        for cell in event.get("cells", ()):
            found[f"{rows[cell['row']]}-{columns[cell['column']]}"] = RATE.sub(
                ", RATE", f"{cell['text']} {cell['note']}".strip()
            )
    return found


@pytest.fixture(scope="module")
def frameworks() -> Path:
    if not (FRAMEWORKS / "bin" / "mpirun").exists():
        pytest.fail(f"{FRAMEWORKS} has no MPICH; make .cache/frameworks/.ready installs it")
    return FRAMEWORKS


def image_of(sandbox: Sandbox) -> str:
    claim = yaml.safe_load(sandbox.cluster_file.read_text()).get("container")
    if not claim:
        pytest.fail("the sandbox has no containers: apt-get install libslurm-dev squashfs-tools gcc")
    return str(claim["image"])


def test_launchers_by_workloads(sandbox: Sandbox, frameworks: Path, tmp_path: Path) -> None:
    image = image_of(sandbox)
    host = [f"{folder}:{folder}:ro" for folder in HOST]
    where = frameworks.resolve()
    run = accept(
        sandbox,
        tmp_path,
        {
            "container": "plain",
            "framework": "with-mpi",
            "expected": {"srun_framework-gpu": "nvidia-smi: not found"},
        },
        "-k",
        "not (mpirun and nccl)",
        mpi={
            "environment": "bare",
            "launchers": ["mpirun", "srun --mpi=pmi2"],
            "compiler": f"{where}/bin/mpicc",
            "mpirun": f"{where}/bin/mpirun",
        },
        bare={},
        plain={"container_image": image},
        **{
            "with-mpi": {
                "container_image": image,
                "container_mounts": [*host, f"{where}:{where}:ro"],
            }
        },
    )
    assert table_of(run) == {
        "mpirun-cpu": "works, RATE",
        "mpirun-gpu": "works",
        "mpirun-mpi": "works, RATE",
        "srun-cpu": "works, RATE",
        "srun-gpu": "works",
        "srun-mpi": "works, RATE",
        "srun-nccl": "works, RATE",
        "srun_pyxis-cpu": "works, RATE",
        "srun_pyxis-gpu": "works",
        "srun_pyxis-mpi": f"not checked the image has no MPI: {where}/bin/mpicc: not found",
        "srun_pyxis-nccl": "n/a the cluster file names no image with nccl-tests (nccl.container)",
        "srun_framework-cpu": "works, RATE",
        "srun_framework-gpu": "fails as expected nvidia-smi: not found",
        "srun_framework-mpi": "works, RATE",
        "srun_framework-nccl": "n/a a framework cannot compute on simulated GPUs",
    }
    assert run.rc == 0, run.out
    lines = [" ".join(line.split()) for line in run.out.splitlines()]
    assert lines.index("experiment matrix") < lines.index("CPU GPU MPI NCCL")
    assert any(RATE.sub(", RATE", line) == "mpirun works, RATE works works, RATE" for line in lines), lines
    # one launcher alone can run NCCL here; virtual nodes share the CPUs, and MPI may use memory between them
    assert rates_of(run) == {}
    assert {f"test_speed[{column}]" for column in speed.MEASURED} <= {*names(run.outcomes, "not applicable")}


# 1 KiB per TCP segment: real MPICH is some ten times slower
SMALL_SEGMENTS = ("UCX_RNDV_THRESH=inf", "UCX_TCP_RX_SEG_SIZE=1k", "UCX_TCP_TX_SEG_SIZE=1k")


@pytest.fixture
def namespaced() -> Iterator[Sandbox]:
    """Two nodes with a network of their own: MPI uses TCP between them under every launcher."""
    with sandbox_folder() as folder:
        sandbox = Sandbox(folder / "s")
        try:
            sandbox.up(nodes=2, gpus_per_node=2, kind="namespaced", share=[ROOT])
        except SandboxError as error:
            pytest.skip(f"this machine makes no namespaced nodes: {error}")
        yield sandbox


def test_slow_launchers_are_named_with_both_rates_and_what_differs(
    namespaced: Sandbox, frameworks: Path, tmp_path: Path
) -> None:
    """CPU under mpirun, MPI and (simulated) NCCL under Pyxis."""
    where, simulated = frameworks.resolve(), namespaced.layout.simbin
    image, wrapper = image_of(namespaced), namespaced.layout.root / "shared" / "one-cpu"
    # beside each task of CPU other programs use its CPU, so that the result does not depend on the load of this machine
    busy = 3 * "timeout 2 sh -c 'while :; do :; done' >/dev/null 2>&1 & "
    wrapper.write_text(
        f'#!/bin/sh\ntaskset -p -c 0 $$ >/dev/null\n[ "$1" != sh ] || {{ {busy} }}\nexec "$@"\n'
    )
    wrapper.chmod(0o755)
    mpi = {
        "environment": "bare",
        "launchers": ["srun --mpi=pmi2"],
        "compiler": f"{where}/bin/mpicc",
        "mpirun": f"{where}/bin/mpirun",
        "mpirun_args": [str(wrapper)],
    }
    folders = (*HOST, where, simulated, sys.prefix, sys.base_prefix)  # with Python, for the simulated NCCL
    environment = {
        "container_image": image,
        "container_mounts": [f"{folder}:{folder}:ro" for folder in folders],
        "exports": {"NVIDIA_VISIBLE_DEVICES": "all"},
    }
    nccl = {"container": image, "command": f"{simulated}/all_reduce_perf"}
    variables = " ".join(("NCCL_IB_DISABLE=1", *SMALL_SEGMENTS))
    namespaced.fault("container_variables", "gpu[01-02]", variables=variables)
    run = accept(
        namespaced,
        tmp_path,
        {"container": "image"},
        "-k",
        "speed",
        mpi=mpi,
        nccl=nccl,
        bare={},
        image=environment,
    )
    assert names(run.outcomes, "failed") == [f"test_speed[{column}]" for column in speed.MEASURED], run.out
    verdicts = [event["verdicts"][0] for event in run.events if event["event"] == "result"]
    found = {one["part"]: one for verdict in verdicts for one in verdict["findings"]}
    assert {one["expected"] for one in found.values()} == {"at least 50% of the fastest launcher"}
    rates = rates_of(run)
    for name, part, apart in (
        (
            "mpirun-cpu",
            "mpirun with CPU",
            "CPUs of the tasks: 2 tasks share 1 CPU (0) of gpu01, not at least one CPU per task",
        ),
        ("srun_pyxis-mpi", "srun + Pyxis with MPI", f"MPI variables: {', '.join(SMALL_SEGMENTS)}, not none"),
        (
            "srun_pyxis-nccl",
            "srun + Pyxis with NCCL",
            "transport: NET/Socket, not NET/IB/GDRDMA; NCCL variables: NCCL_IB_DISABLE=1, not none",
        ),
    ):
        finding, column = found[f"{part} on gpu[01-02]"], name.partition("-")[2]
        rate, unit = rates[name]
        fastest = max(value for other, (value, _) in rates.items() if other.endswith(f"-{column}"))
        assert rate < 0.5 * fastest
        assert finding["measured"].startswith(f"{rate:.3g} {unit}, {rate / fastest:.0%} of ")
        assert f"({fastest:.3g} {unit})" in finding["measured"]
        assert f"in the better of two runs; {apart}" in finding["measured"]
    assert {verdict["action"] for verdict in verdicts} == {"monitor"}
    of_cpu, _, of_nccl = (verdict["cause"] for verdict in verdicts)
    assert of_cpu.startswith("the launcher binds several tasks to the same CPUs: 2 tasks share 1 CPU (0)")
    assert of_nccl == "NCCL uses another transport: NET/Socket; with srun: NET/IB/GDRDMA"


def test_no_pmi_is_expected_where_srun_is_not_claimed(sandbox: Sandbox, tmp_path: Path) -> None:
    bare = {"exports": {"OMPI_MCA_btl": "self,tcp", "PATH": "/usr/bin:/bin"}}
    mpi = {"environment": "bare", "launchers": ["mpirun"]}
    run = accept(sandbox, tmp_path, {}, "-k", "mpi and srun-", mpi=mpi, bare=bare)
    assert run.rc == 0, run.out
    assert table_of(run) == {"srun-mpi": "fails as expected no PMI support"}
    mpi["launchers"] = ["srun"]
    run = accept(sandbox, tmp_path, {}, "-k", "mpi and srun-", mpi=mpi, bare=bare)
    assert names(run.outcomes, "failed") == ["test_cell[srun-mpi]"]
    assert table_of(run)["srun-mpi"].startswith("BROKEN MPI without PMI on gpu[01-02]: OMPI was not built")


def test_a_cell_is_asked_for_by_name(sandbox: Sandbox, tmp_path: Path) -> None:
    run = accept(
        sandbox,
        tmp_path,
        {"container": "lost"},
        "-k",
        "cpu and srun_pyxis",
        lost={"container_image": "/no.sqsh"},
    )
    assert list(run.outcomes.values()) == ["failed"]
    assert table_of(run)["srun_pyxis-cpu"].startswith("BROKEN step: /no.sqsh does not exist on the node")


def test_an_environment_without_an_image_is_an_error(sandbox: Sandbox, tmp_path: Path) -> None:
    run = accept(sandbox, tmp_path, {"container": "bare"}, "-k", "cpu and srun_pyxis", bare={})
    assert list(run.outcomes.values()) == ["error"]
    assert (
        "matrix.container 'bare' is not an environment with a container_image; these have one: none"
        in run.out
    )


def test_tasks_on_the_host_work_in_no_cell_of_an_image(sandbox: Sandbox, tmp_path: Path) -> None:
    image = {"container_image": image_of(sandbox)}
    for node in ("gpu01", "gpu02"):
        sandbox.fault("pyxis_missing", node)
    stated = {"container": "plain", "expected": {"srun_pyxis-gpu": "the image has no nvidia-smi"}}
    run = accept(sandbox, tmp_path, stated, "-k", "srun_pyxis or works", plain=image)
    found = table_of(run)
    for column in ("cpu", "gpu"):
        assert found[f"srun_pyxis-{column}"].startswith(
            "BROKEN step: the task ran on the host, not in the"
        ), found
    assert run.rc == 1
    # the other suites with a payload of NCCL, in the same image
    suites = [str(ROOT / "suites" / name) for name in ("nccl", "burnin")]
    keys = yaml.safe_load((tmp_path / "site.yaml").read_text())
    keys["burnin"] |= {"environment": "plain"}
    keys["nccl"] |= {"environment": "plain", "deadline": "60s"}
    (tmp_path / "site.yaml").write_text(yaml.safe_dump(keys))
    options = [
        f"--cluster={tmp_path / 'site.yaml'}",
        "-m",
        "nccl or burnin",
        "--burnin-time=5s",
        "--nodes=gpu[01-02]",
    ]
    chosen = (*options, "-k", "alone or survived or matmul")
    run = run_pytest(tmp_path, *chosen, where=suites, constants={"burnin": {"load": 0.3}})
    results = {(it["check"], it["node"]): it for it in run.events if it["event"] == "result"}
    for node in ("gpu01", "gpu02"):
        for check in ("nccl.alone", "burnin.survived"):
            (verdict,) = results[check, node]["verdicts"]
            assert "the task ran on the host" in verdict["findings"][0]["measured"], check
            assert verdict["action"] == "configure"
        assert results["burnin.matmul", node]["outcome"] == "not checked"


def test_a_matrix_that_the_cluster_file_does_not_have_is_not_proved(sandbox: Sandbox, tmp_path: Path) -> None:
    run = accept(sandbox, tmp_path, None)
    assert run.rc == 1
    assert set(run.outcomes.values()) == {"error"}
    assert "add `matrix:`" in run.out
    assert "experiment matrix\n" not in run.out
