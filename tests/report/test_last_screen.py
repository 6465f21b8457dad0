"""The verdict and its table fit one screen for any number of nodes; equal failures are one block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from report_helpers import a_run, passing

from pytest_gpucluster.core.check import CHECKS
from pytest_gpucluster.core.part import Part, gpu, named
from pytest_gpucluster.core.registry import import_checks
from pytest_gpucluster.report.machine.events import read_run
from pytest_gpucluster.report.terminal.last_screen import HEIGHT, block, closing, findings

if TYPE_CHECKING:
    from pytest_gpucluster.report.run_model import FailureGroup, Run


def result(node: str, check: str, measured: int | str = 7, **more: Any) -> dict[str, Any]:
    shown_as = {"number": measured, "unit": "GPUs"} if isinstance(measured, int) else measured
    finding = {"code": "count", "part": {"kind": "gpu"}, "measured": shown_as, "expected": "8"}
    cause = {"action": "drain", "cause": "a GPU fell off the bus", "hint": "scontrol show node NODE"}
    told = {"state": "IDLE", "reproduce": [f"srun -w {node} nvidia-smi"], "rerun": f"pytest t.py::t[{node}]"}
    about = {"nodeid": f"t.py::t[{node}]", "suite": check.partition(".")[0], "check": check, "node": node}
    shown: Any = {"event": "result", "outcome": "failed", "phase": "call", "annotation": told, **about}
    verdict = {"outcome": "failed", **cause, "findings": [finding], "advisories": []}
    return {**shown, "message": f"{check} on {node}", "verdicts": [verdict], **more}


def run_of(nodes: int, results: list[dict[str, Any]], exit: int = 1) -> Run:
    names = [f"gpu{number:04}" for number in range(1, nodes + 1)]
    fine = (passing(name, check="os.responds") for name in names)
    return read_run(a_run([*fine, *results], nodes=names, finish=exit))


@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize("failing", [1, 6, 60, 600])
@pytest.mark.parametrize("kinds", [1, 5, 40])
def test_the_verdict_fits_one_screen(failing: int, kinds: int, width: int) -> None:
    names = [f"suite{kind}.check_with_a_long_name_{kind}" for kind in range(kinds)]
    results = [result(f"gpu{n:04}", names[n % kinds], n % 7) for n in range(1, failing + 1)]
    lines = closing(run_of(1000, results), width)
    assert len(lines) <= HEIGHT
    assert max(map(len, lines)) <= width
    assert lines[0].startswith(f"NOT ACCEPTED: {failing:,} of 1,000 nodes failed.")
    assert f"1,000 nodes: {1000 - failing:,} fit, {failing:,} failed, 0 not proved, 0 not tested" in lines
    shown = [line for line in lines if "suite" in line]
    assert "drain:" in lines
    assert len(shown) == min(failing, kinds) or lines[-1].startswith("and ")
    assert all("expected 8" in line for line in shown) or width == 80


def test_the_rest_is_counted_where_it_does_not_fit() -> None:
    results = [result(f"gpu{number:04}", f"gpu.check{number}") for number in range(1, 61)]
    lines = closing(run_of(60, results), 120)
    assert len(lines) == HEIGHT
    shown = sum(line.startswith("  gpu") for line in lines)
    assert lines[-1] == f"and {60 - shown} more findings on {60 - shown} nodes: see report.html"


def test_80_columns_hold_the_name_of_every_check() -> None:
    import_checks()
    for check in sorted(CHECKS, key=len)[-5:]:
        lines = closing(run_of(2, [result("gpu0001", check)]), 80)
        assert any(check in line for line in lines), lines


GPU = gpu(3, uuid="GPU-9a80e8a7-3666-8cbc-48a4-f67d9da8c8d8", address="0000:61:00.0")


def found(part: Part, measured: str, expected: str, action: str, cause: str = "") -> dict[str, Any]:
    findings = [{"part": part.as_dict(), "measured": measured, "expected": expected}]
    return {"verdicts": [{"outcome": "failed", "action": action, "cause": cause, "findings": findings}]}


def test_the_hardest_repair_is_first_and_each_finding_has_its_line() -> None:
    links = found(GPU, "17 active links (inactive: link 7)", "18", "drain", "a bad seat")
    rows = found(GPU, "a row remapping failed", "no failure", "return to vendor", "no spare rows")
    results = [
        result(
            "gpu0004", "os.services", **found(named("service", "gpu-manager.service"), "failed", "active", "configure")
        ),
        *(result(node, "gpu.nvlink_state", **links) for node in ("gpu0001", "gpu0002")),
        result("gpu0003", "gpu.remapped_rows", **rows),
    ]
    narrow, wide = (closing(run_of(4, results), width) for width in (80, 120))
    assert narrow[-9:] == [
        "return to vendor:",
        "  gpu0003         gpu.remapped_rows  GPU 3 (0000:61:00.0): a row remapping",
        "                                     failed, expected no failure",
        "drain:",
        "  gpu[0001-0002]  gpu.nvlink_state   GPU 3: 17 active links (inactive: link 7),",
        "                                     expected 18",
        "configure:",
        "  gpu0004         os.services        gpu-manager.service: failed, expected",
        "                                     active",
    ]
    assert [line[37:] for line in wide[-6:] if line.startswith(" ")] == [
        "GPU 3 (0000:61:00.0): a row remapping failed, expected no failure; no spare rows",
        "GPU 3: 17 active links (inactive: link 7), expected 18; a bad seat",
        "gpu-manager.service: failed, expected active",
    ]


def test_what_a_waiver_covers_is_listed() -> None:
    words = {"at": ["prod.yaml:9"], "words": "OPS-7: RMA", "text": ""}
    waiver = {**words, "outcome": "failed", "message": "7 GPUs"}
    waived = result("gpu0002", "gpu.count", outcome="waived", verdicts=[], waiver=waiver)
    lines = closing(run_of(2, [waived], exit=0), 80)
    assert lines[0].startswith("ACCEPTED, WITH WAIVERS: 2 of 2 nodes.")
    assert "- waived: gpu.count on gpu0002: 7 GPUs (OPS-7: RMA)" in lines


def group_of(check: str, *measured: int | str) -> FailureGroup:
    """Return the failures of nodes that measured this."""
    results = [result(f"gpu000{n}", check, text) for n, text in enumerate(measured, 1)]
    (group,) = run_of(len(measured), results).groups.values()
    return group


def test_equal_failures_are_one_block() -> None:
    group = group_of("gpu.count", 7, 5, 6)
    assert block(group, "pytest --cluster=x --nodes=all t.py::t") == [
        "gpu.count on 3 nodes: gpu[0001-0003]: GPUs: measured 5 to 7 GPUs, expected 8",
        "likely cause: a GPU fell off the bus",
        "what to do:   scontrol show node gpu[0001-0003]",
        "action:       drain",
        "Slurm state: IDLE",
        "reproduce:    srun -w gpu0001 nvidia-smi  # on gpu0001",
        "rerun:        pytest --cluster=x --nodes=all t.py::t",
    ]


def test_values_that_are_no_numbers_are_listed_and_counted() -> None:
    group = group_of("gpu.ecc", "off", "on", "N/A", "unknown", "?")
    assert findings(group) == ["GPUs: measured off, on, N/A and 2 more, expected 8"]
    # a number in a path is no range
    texts = [f"cannot create /run/gpu0{n}/enroot" for n in (1, 2)]
    assert findings(group_of("x.y", *texts)) == [f"GPUs: measured {texts[0]}, {texts[1]}, expected 8"]
