"""`dcgmi diag -j` of DCGM 2 to 4: what its JSON says, and what each of its findings asks for."""

from __future__ import annotations

import json
from typing import Any

import pytest
from burnin_helpers import CONFIG, failed, fleet
from counter_examples import CONFIGURE, DRAIN, MONITOR, NOT_CHECKED, PASSED, REBOOT, WARNING, CounterExample, result
from judged import judged
from suite_helpers import considered

from pytest_gpucluster.core.check import Metric, Verdict
from pytest_gpucluster.suites.burnin import dcgm

DCGM_3 = """Successfully ran diagnostic for group.
{"level": "info"}
{broken
{
	"DCGM GPU Diagnostic" :
	{
		"test_categories" :
		[
			{"category" : "Deployment", "tests" : [{"name" : "Denylist", "results" : [{"status" : "Pass"}]}, null]},
			{"category" : "Integration", "tests" : [{"name" : "PCIe", "results" : [
				{"gpu_id" : "0", "status" : "Pass"},
				{"gpu_ids" : "1,2", "status" : "FAIL", "warnings" : [{"error_id" : 1, "warning" : "slow"}, "link"]},
				{"gpu_id" : "3", "status" : "Skip"}]}]}
		],
		"version" : "3.3.9"
	}
}
Trailing words { not JSON
"""
SOFTWARE_OTHER, HARDWARE_MEMORY, LIBRARY, CUDA, EUD = 8, 10, 4, 6, 7
RESET = "reset gpu"


def of(out: str, rc: int = 226, err: str = "") -> Verdict:
    whole = fleet(1)
    whole.nodes["a"].dcgm = {"rc": rc, "out": out, "err": err}
    return dcgm.dcgm(whole, "a", CONFIG)


def warned(severity: int | None = None, category: int | None = HARDWARE_MEMORY, words: str = "words") -> dict[str, Any]:
    fields = {"warning": words, "error_id": 4711, "error_severity": severity, "error_category": category}
    return {key: value for key, value in fields.items() if value is not None}


def four(*results: dict[str, Any], summary: dict[str, Any] | None = None, **more: Any) -> str:
    """Return DCGM 4's JSON of one test on the GPUs 0, 1, ... and of what is about none."""
    told = [{"entity_group": "GPU", "entity_id": n, **one} for n, one in enumerate(results)]
    test = {"name": "memory", "results": told, "test_summary": summary or {"status": "Pass"}}
    root = {"test_categories": [{"category": "Hardware", "tests": [test]}], **more}
    return json.dumps({"metadata": {"version": "4.2.3"}, "DCGM Diagnostic": root})


def fail(*warnings: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"status": "Fail", "warnings": [*warnings], **more}


def three(name: str, status: str | None, *warnings: Any, **more: Any) -> str:
    """Return DCGM 2's and 3's JSON of one test."""
    told = {"warnings": warnings[0] if len(warnings) == 1 else warnings} if warnings else {}
    tests = [{"name": name, "results": [{"status": status, **told, **more}]}]
    return json.dumps({"DCGM GPU Diagnostic": {"test_categories": [{"category": "Deployment", "tests": tests}]}})


PASS = {"status": "Pass"}


def test_dcgm_3_and_4_are_read() -> None:
    found = dcgm.read(226, DCGM_3)
    assert (found.version, found.problem) == ("3.3.9", "")
    assert [(r.category, r.test, str(r.where), r.status, r.warning) for r in found.results] == [
        ("Deployment", "Denylist", "node", "pass", ""),
        ("Integration", "PCIe", "GPU 0", "pass", ""),
        *(("Integration", "PCIe", f"GPU {n}", "fail", "slow; link") for n in (1, 2)),
        ("Integration", "PCIe", "GPU 3", "skip", ""),
    ]
    assert dcgm.read(1, four(PASS)).version == "4.2.3"
    for key in ("warnings", "warning", "errors"):
        (one,) = dcgm.read(1, three("PCIe", "Fail", **{key: ["slow"]})).results
        assert one.warning == "slow"


@pytest.mark.parametrize(
    ("rc", "out", "err", "words"),
    [
        (1, "", "", "no JSON (exit 1): no message"),
        (1, "Error: no host engine\n", "", "no JSON (exit 1): Error: no host engine"),
        (127, "", "dcgmi: not found", "no JSON (exit 127): dcgmi: not found"),
        (0, "{}", "", "JSON without DCGM Diagnostic or DCGM GPU Diagnostic: []"),
        (0, '{"a": 1}' + "{" * 100, "", "JSON without DCGM Diagnostic or DCGM GPU Diagnostic: ['a']"),
        (2, '{"DCGM Diagnostic": {}}', "last words", "no test in its JSON (exit 2): last words"),
        (0, "{" * 200, "", "no JSON (exit 0): " + "{" * 200),
    ],
)
def test_what_is_not_understood_is_not_checked_and_says_why(rc: int, out: str, err: str, words: str) -> None:
    verdict = of(out, rc, err)
    assert (result(verdict), verdict.reason) == (NOT_CHECKED, f"dcgmi diag: {words}")


def test_what_dcgm_says_of_no_entity_is_not_missed() -> None:
    summary = fail(warned(2, LIBRARY, "NVML"))
    for out in (four(PASS, summary=summary), four(summary=summary)):
        assert failed(of(out)) == ["node: memory (Hardware): fail: NVML"]
    same = fail(warned(2, words="this one"))
    both = fail(*same["warnings"], *summary["warnings"])
    once = "GPU 0: memory (Hardware): fail: this one"
    assert failed(of(four(same, summary=same))) == [once]
    assert failed(of(four(same, summary=both))) == [once, "node: memory (Hardware): fail: this one; NVML"]
    assert failed(of(four(PASS, summary={"status": "Fail"}))) == ["node: memory (Hardware): fail"]
    # a summary that fails without a word beside an entity that fails says nothing new
    assert failed(of(four(same, summary={"status": "Fail"}))) == [once]


@pytest.mark.parametrize(
    ("warnings", "action"),
    [
        ([warned(5)], CONFIGURE),  # a setting
        ([warned(1)], MONITOR),
        ([warned(0), warned(1), warned(5)], MONITOR),
        ([warned(6)], RESET),
        ([warned(5), warned(6)], RESET),
        ([warned(6), warned(2)], DRAIN),
        ([warned(3)], MONITOR),
        ([warned(4, None)], MONITOR),  # to be triaged
        ([warned(None)], MONITOR),  # before DCGM 3.3
        ([warned(2), warned(None)], DRAIN),
        ([], MONITOR),
        ([{**warned(2), "error_id": 126}], REBOOT),  # GPU_RECOVERY_REBOOT
        ([warned(6, SOFTWARE_OTHER)], CONFIGURE),  # graphics processes
        ([warned(2, EUD)], DRAIN),  # an EUD that failed
        ([warned(4, CUDA), warned(4)], MONITOR),
        # not the hardware: configuration, library, CUDA, EUD that cannot start, other software, DCGM itself
        *(([warned(4, category)], CONFIGURE) for category in (3, LIBRARY, CUDA, EUD, SOFTWARE_OTHER, 16)),
    ],
)
def test_how_grave_dcgm_calls_it_decides_what_to_do(warnings: list[dict[str, Any]], action: str) -> None:
    verdict = of(four(PASS, fail(*warnings)))
    assert judged(verdict) == (action, ["GPU 1"])
    assert verdict.metrics == (Metric("dcgm_passed", 1, "tests"),)
    assert ("settings or software" in verdict.cause) == (action == CONFIGURE)
    assert ("dcgmi diag -r 1" in verdict.hint) == (action == CONFIGURE)


def test_a_warning_that_proves_no_fault_fails_nothing() -> None:
    assert judged(of(four({**PASS, "warnings": [warned(4, 8, "held")]}))) == (WARNING, ["GPU 0"])
    assert judged(of(four({"status": "Warn", "warnings": [warned(2)]}))) == (DRAIN, ["GPU 0"])


def test_software_that_passes_alone_is_no_pass_of_the_hardware() -> None:
    """As on GB10, of which DCGM 4 allows no test but that of software (is_allowed)."""
    for tests, expected in (
        ({"Deployment": "Pass", "Hardware": "Skip", "Integration": "Skip"}, NOT_CHECKED),
        ({"Deployment": "Pass"}, PASSED),  # level 1 asks for no more
        ({"Deployment": "Pass", "Hardware": "Skip", "Stress": "Pass"}, PASSED),
    ):
        categories = [
            {"category": it, "tests": [{"name": it, "results": [{"status": status}]}]} for it, status in tests.items()
        ]
        verdict = of(json.dumps({"DCGM Diagnostic": {"test_categories": categories}}))
        assert result(verdict) == expected
        assert ("only those of software" in verdict.reason) == (expected == NOT_CHECKED)


def test_a_diagnostic_that_broke_off_is_not_checked_unless_it_found_something() -> None:
    alone = '{"DCGM Diagnostic": {"version": "4.2.3", "runtime_error": "NVVS died"}}'
    for out in (four(PASS, runtime_error="NVVS died"), alone):
        assert (result(of(out)), of(out).reason) == (NOT_CHECKED, "dcgmi diag: NVVS died")
    assert result(of(four(fail(warned(2)), runtime_error="NVVS died"))) == DRAIN


def test_every_word_for_a_status_is_known() -> None:
    for status, expected, words in (
        *((word, PASSED, "") for word in ("Pass", "PASSED")),
        *((word, WARNING, "") for word in ("Warn", "warning")),
        *((word, MONITOR, "") for word in ("Fail", "Failed", "ERROR")),
        *((word, NOT_CHECKED, "skipped every test") for word in ("Skip", "Skipped", "Not Run", "NotRun")),
        ("Maybe", NOT_CHECKED, "'maybe' of Persistence Mode on node"),
        (None, NOT_CHECKED, "'none'"),
    ):
        verdict = of(three("Persistence Mode", status, *(() if expected == PASSED else ("words",))))
        assert (result(verdict), words in verdict.reason) == (expected, True), status
    assert result(of(four(PASS, {"status": "Skip"}))) == PASSED


def diagnosed(machine: str, source: str, expected: str, out: str, *, sick: bool = False) -> CounterExample:
    return CounterExample("burnin.dcgm", machine, source, expected, lambda: of(out), sick)


NO_SEVERITY = three("Targeted Power", "Fail", "Max power of 253.1 did not reach 262.5 for GPU 0")
PERSISTENCE = four(fail(warned(5, 3, "Persistence mode for GPU 0 is disabled")))
COUNTER_EXAMPLES = [
    diagnosed("persistence mode is off", "tests/corpus/dcgm: 4.x", CONFIGURE, PERSISTENCE),
    diagnosed("a board with few lanes", "DCGM_FR_LOW_BANDWIDTH: triage", MONITOR, four(fail(warned(4, 13)))),
    diagnosed("a power limit of a site", "DCGM_FR_TARGET_POWER: triage", MONITOR, four(fail(warned(4, 14)))),
    diagnosed("the same before DCGM 3.3", "dcgmi 2.x and 3.1: no severity", MONITOR, NO_SEVERITY),
    diagnosed("uncorrectable errors", "VOLATILE_DBE: isolate", DRAIN, four(fail(warned(2))), sick=True),
    diagnosed("row remappings wait", "PENDING_ROW_REMAP: reset", RESET, four(fail(warned(6))), sick=True),
]
test_machines_get_the_verdict_that_a_person_gives_them = considered(COUNTER_EXAMPLES)
