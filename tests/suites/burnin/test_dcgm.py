"""`dcgmi diag -j` of DCGM 2 to 4: what its JSON says, and what each of its findings asks for."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from burnin_helpers import CONFIG, failed, fleet
from counter_examples import (
    CONFIGURE,
    DRAIN,
    MONITOR,
    NOT_CHECKED,
    WARNING,
    CounterExample,
    assert_as_expected,
    name,
    result,
)
from hypothesis import given
from hypothesis import strategies as st
from judged import parts

from pytest_gpucluster.core.check import Action, Finding, Metric, Outcome, Verdict
from pytest_gpucluster.core.errors import ProbeError
from pytest_gpucluster.suites.burnin import dcgm
from pytest_gpucluster.suites.burnin.dcgm import DcgmWarning

DCGM_3 = """Successfully ran diagnostic for group.
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


def judged(out: str, rc: int = 0, err: str = "") -> Verdict:
    whole = fleet(1)
    whole.nodes["a"].dcgm = {"rc": rc, "out": out, "err": err}
    return dcgm.dcgm(whole, "a", CONFIG)


def warned(
    severity: int | None = None, category: int | None = HARDWARE_MEMORY, words: str = "words"
) -> dict[str, Any]:
    fields = {"warning": words, "error_id": 4711, "error_severity": severity, "error_category": category}
    return {key: value for key, value in fields.items() if value is not None}


def four(
    *results: dict[str, Any], summary: dict[str, Any] | None = None, name: str = "memory", **more: Any
) -> str:
    """Return DCGM 4's JSON of one test on the GPUs 0, 1, ... and of what is about none."""
    told = [
        {"entity_group": "GPU", "entity_group_id": 1, "entity_id": n, **one} for n, one in enumerate(results)
    ]
    test = {"name": name, "results": told, "test_summary": summary or {"status": "Pass"}}
    category = {"category": "Hardware", "tests": [test]}
    return json.dumps(
        {"metadata": {"version": "4.2.3"}, "DCGM Diagnostic": {"test_categories": [category], **more}}
    )


def three(name: str, status: str, *warnings: Any, category: str = "Deployment", **more: Any) -> str:
    """Return DCGM 2's and 3's JSON of one test."""
    result = {
        "status": status,
        **({"warnings": warnings[0] if len(warnings) == 1 else warnings} if warnings else {}),
        **more,
    }
    tests = [{"name": name, "results": [result]}]
    return json.dumps({"DCGM GPU Diagnostic": {"test_categories": [{"category": category, "tests": tests}]}})


# --- the reader


def test_dcgm_3_is_read() -> None:
    found = dcgm.read(226, DCGM_3)
    assert (found.version, found.problem) == ("3.3.9", "")
    assert [(r.category, r.test, r.where, r.status, r.warning) for r in found.results] == [
        ("Deployment", "Denylist", "", "pass", ""),
        ("Integration", "PCIe", "GPU 0", "pass", ""),
        ("Integration", "PCIe", "GPU 1", "fail", "slow; link"),
        ("Integration", "PCIe", "GPU 2", "fail", "slow; link"),
        ("Integration", "PCIe", "GPU 3", "skip", ""),
    ]


def test_dcgm_4_is_read() -> None:
    found = dcgm.read(1, four({"status": "Pass"}, {"status": "Fail", "warnings": [warned(2, 10, "ECC")]}))
    assert found.version == "4.2.3"
    assert [(r.where, r.status, r.warnings) for r in found.results] == [
        ("GPU 0", "pass", ()),
        ("GPU 1", "fail", (DcgmWarning("ECC", 2, 10),)),
    ]


def test_a_log_line_with_an_object_of_its_own_does_not_hide_the_diagnostic() -> None:
    assert dcgm.read(0, '{"level": "info"}\n{broken\n' + four({"status": "Pass"})).results[0].status == "pass"


def test_a_version_stands_in_three_places() -> None:
    plain = {"test_categories": json.loads(four({"status": "Pass"}))["DCGM Diagnostic"]["test_categories"]}
    for text, version in (
        (json.dumps({"DCGM Diagnostic": {**plain, "version": "4.0.0"}}), "4.0.0"),
        (json.dumps({"DCGM Diagnostic": {**plain, "metadata": {"DCGM Version": "4.1.1"}}}), "4.1.1"),
        (json.dumps({"DCGM Diagnostic": plain}), ""),
    ):
        assert dcgm.read(0, text).version == version


@pytest.mark.parametrize(
    ("rc", "out", "err", "words"),
    [
        (1, "", "", "dcgmi diag: no JSON (exit 1): no message"),
        (1, "Error: unable to establish a connection to the specified host: localhost\n", "",
         "dcgmi diag: no JSON (exit 1): Error: unable to establish a connection to the specified host: localhost"),
        (127, "", "dcgmi: not found", "dcgmi diag: no JSON (exit 127): dcgmi: not found"),
        (0, "{}", "", "dcgmi diag: JSON without DCGM Diagnostic or DCGM GPU Diagnostic: []"),
        (0, "[1]", "", "dcgmi diag: no JSON (exit 0): [1]"),
        (0, '{"a": 1}', "", "dcgmi diag: JSON without DCGM Diagnostic or DCGM GPU Diagnostic: ['a']"),
        (2, '{"DCGM Diagnostic": {}}', "last words", "dcgmi diag: no test in its JSON (exit 2): last words"),
        (0, "{" * 200, "", "dcgmi diag: no JSON (exit 0): " + "{" * 200),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_not_checked_and_says_why(rc: int, out: str, err: str, words: str) -> None:
    with pytest.raises(ProbeError) as error:
        dcgm.read(rc, out, err)
    assert str(error.value) == words
    verdict = judged(out, rc, err)
    assert (verdict.outcome, verdict.reason) == (Outcome.NOT_CHECKED, words)


def test_what_dcgm_says_of_no_entity_is_not_missed() -> None:
    summary = {"status": "Fail", "warnings": [warned(2, LIBRARY, "NVML could not be loaded")]}
    for out in (four({"status": "Pass"}, summary=summary), four(summary=summary)):
        assert failed(judged(out)) == ["node: memory (Hardware): fail: NVML could not be loaded"]
    same = {"status": "Fail", "warnings": [warned(2, words="this one")]}
    assert failed(judged(four(same, summary=same))) == ["GPU 0: memory (Hardware): fail: this one"]
    both = {"status": "Fail", "warnings": [*same["warnings"], *summary["warnings"]]}
    assert failed(judged(four(same, summary=both))) == [
        "GPU 0: memory (Hardware): fail: this one",
        "node: memory (Hardware): fail: this one; NVML could not be loaded",
    ]
    assert failed(judged(four({"status": "Pass"}, summary={"status": "Fail"}))) == [
        "node: memory (Hardware): fail"
    ]
    # a summary that fails without a word beside an entity that fails says nothing new
    assert failed(judged(four(same, summary={"status": "Fail"}))) == [
        "GPU 0: memory (Hardware): fail: this one"
    ]


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda inner: (
    st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["test_categories", "tests", "results", "status", "warnings"]), inner, max_size=4)
), max_leaves=12))  # fmt: skip
def test_any_json_under_the_root_is_read_or_refused(inner: Any) -> None:
    with contextlib.suppress(ProbeError):
        dcgm.read(0, json.dumps({"DCGM Diagnostic": inner}))


# --- the check


def test_each_result_is_judged_by_itself() -> None:
    verdict = judged(four({"status": "Pass"}, {"status": "Fail", "warnings": [warned(2, words="ECC")]}), 226)
    assert verdict.findings == (Finding("GPU 1", "memory (Hardware): fail: ECC", "pass", Action.DRAIN),)
    assert (verdict.outcome, verdict.action) == (Outcome.FAILED, Action.DRAIN)
    assert verdict.cause == "NVIDIA's own diagnostic fails"
    assert verdict.metrics == (Metric("dcgm_passed", 1, "tests"),)


def test_dcgm_that_is_not_installed_does_not_apply() -> None:
    whole = fleet(1)
    whole.nodes["a"].lacks["dcgm"] = "dcgmi is not installed on the node"
    verdict = dcgm.dcgm(whole, "a", CONFIG)
    assert (verdict.outcome, verdict.reason) == (Outcome.NOT_CHECKED, "dcgmi is not installed on the node")


@pytest.mark.parametrize(
    ("warnings", "action"),
    [
        ([warned(5)], Action.CONFIGURE),  # a setting
        ([warned(1)], Action.MONITOR),
        ([warned(0), warned(1), warned(5)], Action.MONITOR),
        ([warned(6)], Action.RESET_GPU),
        ([warned(5), warned(6)], Action.RESET_GPU),
        ([warned(6), warned(2)], Action.DRAIN),
        ([warned(2)], Action.DRAIN),
        ([warned(3)], Action.MONITOR),
        ([warned(4)], Action.MONITOR),  # to be triaged
        ([warned(4, None)], Action.MONITOR),
        ([warned(None)], Action.DRAIN),  # before DCGM 3.3
        ([warned(1), warned(None)], Action.DRAIN),
        ([], Action.DRAIN),
        # not the hardware: configuration, library, CUDA, EUD that cannot start, other software, DCGM itself
        *(
            ([warned(4, category)], Action.CONFIGURE)
            for category in (3, LIBRARY, CUDA, EUD, SOFTWARE_OTHER, 16)
        ),
        ([warned(6, SOFTWARE_OTHER)], Action.CONFIGURE),  # graphics processes
        ([warned(3, SOFTWARE_OTHER)], Action.CONFIGURE),
        *(([warned(4, category)], Action.MONITOR) for category in (0, 1, 2, 5, 9, 10, 11, 12, 13, 14, 15)),
        ([warned(2, EUD)], Action.DRAIN),  # an EUD that failed
        ([warned(4, CUDA), warned(4)], Action.MONITOR),
    ],
)
def test_how_grave_dcgm_calls_it_decides_what_to_do(warnings: list[dict[str, Any]], action: Action) -> None:
    verdict = judged(four({"status": "Fail", "warnings": warnings}), 226)
    assert (verdict.outcome, verdict.action) == (Outcome.FAILED, action)
    assert ("settings or software" in verdict.cause) == (action is Action.CONFIGURE)
    assert ("dcgmi diag -r 1" in verdict.hint) == (action is Action.CONFIGURE)


@pytest.mark.parametrize(
    ("name", "words", "action"),
    [
        *((name, "words", Action.CONFIGURE) for name in (
            "Denylist", "Blacklist", "NVML Library", "CUDA Main Library", "CUDA Toolkit Libraries",
            "Permissions and OS Blocks", "Permissions and OS-related Blocks", "Persistence Mode",
            "Environment Variables", "Graphics Processes", "Fabric Manager")),
        ("Page Retirement/Row Remap", "GPU 3 has pending page retirements", Action.DRAIN),
        ("Inforom", "GPU 3 has a corrupt InfoROM", Action.DRAIN),
        ("GPU Memory", "uncorrectable errors", Action.DRAIN),
        ("PCIe", "Error using CUDA API cudaDeviceGetByPCIBusId for GPU 0: 'invalid argument'", Action.CONFIGURE),
        ("Memory", "CUDA context: CUDA-capable device(s) is/are busy or unavailable", Action.CONFIGURE),
        ("Diagnostic", "CUDA_VISIBLE_DEVICES is set", Action.CONFIGURE),
        ("Targeted Power", "Persistence mode for GPU 0 is disabled", Action.CONFIGURE),
    ],
)  # fmt: skip
def test_before_dcgm_says_how_grave_it_is_tests_and_words_of_software_drain_nobody(
    name: str, words: str, action: Action
) -> None:
    verdict = judged(three(name, "Fail", words))
    assert (verdict.outcome, verdict.action) == (Outcome.FAILED, action)
    assert verdict.findings[0].measured == f"{name} (Deployment): fail: {words}"


def test_a_warning_that_proves_no_fault_fails_nothing() -> None:
    for out, part in (
        (three("Environment Variables", "Warn", "CUDA_VISIBLE_DEVICES is set"), "node"),
        (four({"status": "Pass", "warnings": [warned(4, 8, "memory held")]}), "GPU 0"),
    ):
        verdict = judged(out)
        assert (result(verdict), parts(verdict)) == (WARNING, [part])
    grave = judged(four({"status": "Warn", "warnings": [warned(2, words="DBE")]}))
    assert (result(grave), parts(grave)) == (DRAIN, ["GPU 0"])


def test_skipped_tests_pass_beside_others_and_are_no_pass_alone() -> None:
    assert judged(four({"status": "Pass"}, {"status": "Skip"})).outcome is Outcome.PASSED
    for status in ("Skip", "NOT RUN"):
        alone = judged(four({"status": status}))
        assert (alone.outcome, alone.reason) == (Outcome.NOT_CHECKED, "dcgmi diag skipped every test")


def test_software_that_passes_alone_is_no_pass_of_the_hardware() -> None:
    """As on GB10, of which DCGM 4 allows no test but that of software (is_allowed)."""

    def run(*tests: tuple[str, str]) -> Verdict:
        categories = [
            {
                "category": category,
                "tests": [{"name": category, "results": [{"entity_id": 0, "status": status}]}],
            }
            for category, status in tests
        ]
        return judged(json.dumps({"DCGM Diagnostic": {"test_categories": categories}}))

    skipped = run(("Deployment", "Pass"), ("Hardware", "Skip"), ("Integration", "Skip"))
    words = "dcgmi diag skipped every test of the hardware and ran only those of software"
    assert (skipped.outcome, skipped.reason) == (Outcome.NOT_CHECKED, words)
    assert run(("Deployment", "Pass")).outcome is Outcome.PASSED, "level 1 asks for no more"
    assert run(("Deployment", "Pass"), ("Hardware", "Skip"), ("Stress", "Pass")).outcome is Outcome.PASSED


@pytest.mark.parametrize(("result", "status"), [({"status": "Maybe"}, "maybe"), ({}, "no status")])
def test_a_status_that_is_not_known_is_no_pass(result: dict[str, Any], status: str) -> None:
    verdict = judged(four({"status": "Pass"}, result))
    words = f"dcgmi diag: the status {status!r} of memory on GPU 1 is not known"
    assert (verdict.outcome, verdict.reason) == (Outcome.NOT_CHECKED, words)


def test_a_diagnostic_that_broke_off_is_not_checked_unless_it_found_something() -> None:
    alone = '{"DCGM Diagnostic": {"version": "4.2.3", "runtime_error": "NVVS died"}}'
    for out in (four({"status": "Pass"}, runtime_error="NVVS died"), alone):
        assert (result(judged(out, 226)), judged(out).reason) == (NOT_CHECKED, "dcgmi diag: NVVS died")
    bad = judged(four({"status": "Fail", "warnings": [warned(2)]}, runtime_error="NVVS died"))
    assert result(bad) == DRAIN


@pytest.mark.parametrize(
    ("result", "where"),
    [({"gpu_id": "3"}, "GPU 3"), ({"gpu_ids": 0}, "GPU 0"), ({"gpu_ids": ""}, "node"), ({"gpu_id": -1}, "node"),
     ({"entity_group": "CPU", "entity_id": 1}, "CPU 1"), ({"entity_id": 2}, "entity 2"), ({}, "node")],
)  # fmt: skip
def test_where_a_test_failed(result: dict[str, Any], where: str) -> None:
    assert judged(three("GPU Memory", "Fail", "bad", **result)).findings[0].part == where


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        *((word, Outcome.PASSED) for word in ("Pass", "PASSED", "Warn", "warning")),
        *((word, Outcome.FAILED) for word in ("Fail", "Failed", "ERROR")),
        *((word, Outcome.NOT_CHECKED) for word in ("Skip", "Skipped", "Not Run", "NotRun", "")),
    ],
)
def test_every_word_for_a_status_is_known(status: str, outcome: Outcome) -> None:
    warns = three("Environment Variables", status, "CUDA_VISIBLE_DEVICES is set")
    verdict = judged(warns if status.lower().startswith("warn") else four({"status": status}))
    assert verdict.outcome is outcome
    assert bool(verdict.advisories) is status.lower().startswith("warn")
    if outcome is Outcome.NOT_CHECKED and status:
        assert verdict.reason == "dcgmi diag skipped every test"


def test_where_the_words_of_a_result_stand() -> None:
    def told(**result: Any) -> tuple[DcgmWarning, ...]:
        return dcgm.read(0, four({"status": "Fail", **result})).results[0].warnings

    for key in ("warnings", "warning", "errors"):
        assert told(**{key: "words"}) == told(**{key: ["words", None]}) == (DcgmWarning("words"),)
    for key in ("warning", "warnings", "error", "message"):
        assert told(warnings=[{key: "words", "error_severity": 5, "error_category": 3}]) == (
            DcgmWarning("words", 5, 3),
        )
    assert told(warnings=[{"x": 1}]) == (DcgmWarning(""),)
    assert told(warnings=[["a", "", {"message": "b"}]]) == (DcgmWarning("a; b"),)
    nameless: dict[str, Any] = {"DCGM Diagnostic": {"test_categories": [{"tests": [{"results": [{}]}]}]}}
    assert dcgm.read(0, json.dumps(nameless)) == dcgm.DcgmDiag((dcgm.DcgmResult("", "", "", "no status"),))
    broken = dcgm.read(0, four(runtime_error=["NVVS", None, "died"]))
    assert (broken.problem, broken.version) == ("dcgmi diag: NVVS; died", "4.2.3")


def test_words_before_the_json_are_none_of_its_starts() -> None:
    assert dcgm.read(0, "words " + "{" * 99 + four({"status": "Pass"})).results[0].status == "pass"
    assert dcgm.read(0, four({"status": "Pass"}) + " {").results[0].status == "pass"
    with pytest.raises(ProbeError, match=r"JSON without .*: \['a'\]$"):
        dcgm.read(0, '{"a": 1}' + "{" * 100)


PCIE, NVLINK = 13, 11


def diagnosed(machine: str, source: str, expected: str, out: str, *, sick: bool = False) -> CounterExample:
    return CounterExample("burnin.dcgm", machine, source, expected, lambda: judged(out, 226), sick)


COUNTER_EXAMPLES = [
    diagnosed("persistence mode is off", "tests/corpus/dcgm: 4.x-persistence-mode-off", CONFIGURE,
              four({"status": "Fail", "warnings": [warned(5, 3, "Persistence mode for GPU 0 is disabled")]})),
    diagnosed("PCIe bandwidth below DCGM's bound on a board with few lanes", "DCGM_FR_LOW_BANDWIDTH: triage", MONITOR,
              four({"status": "Fail", "warnings": [warned(4, PCIE, "Bandwidth of GPU 0 ... did not exceed")]})),
    diagnosed("targeted power below the target: a power limit of the site", "DCGM_FR_TARGET_POWER: triage", MONITOR,
              four({"status": "Fail", "warnings": [warned(4, 14, "Max power of 400.0 did not reach 700.0")]})),
    diagnosed("the same before DCGM 3.3", "dcgmi 2.x: no severity; tests/corpus/dcgm: stress below target", MONITOR,
              three("Targeted Power", "Fail", "Max power of 253.1 did not reach desired power minimum target_power of 262.5 for GPU 0",
                    category="Stress")),
    diagnosed("the bandwidth test of DCGM 3.1 on a board with few lanes", "dcgmi 3.1: no severity", MONITOR,
              three("PCIe", "Fail", "Bandwidth of GPU 0 in direction Host-to-GPU of 5.1 did not exceed minimum required bandwidth of 12.0.",
                    category="Integration")),
    diagnosed("another process on the GPU", "tests/corpus/dcgm: t4-cuda-busy", CONFIGURE,
              three("Memory", "Fail", "CUDA-capable device(s) is/are busy or unavailable")),
    diagnosed("a GPU with uncorrectable errors", "DCGM_FR_VOLATILE_DBE_DETECTED: isolate", DRAIN,
              four({"status": "Fail", "warnings": [warned(2, HARDWARE_MEMORY, "DBE")]}), sick=True),
    diagnosed("row remappings that wait", "DCGM_FR_PENDING_ROW_REMAP: reset", "reset gpu",
              four({"status": "Fail", "warnings": [warned(6, HARDWARE_MEMORY, "row remappings are pending")]}), sick=True),
    diagnosed("uncorrectable errors before DCGM 3.3", "dcgmi 3.1: no severity", DRAIN,
              three("GPU Memory", "Fail", "Detected 2 volatile double-bit ECC error(s) on GPU 0."), sick=True),
]  # fmt: skip


@pytest.mark.parametrize("machine", COUNTER_EXAMPLES, ids=name)
def test_machines_get_the_verdict_that_a_person_gives_them(machine: CounterExample) -> None:
    assert_as_expected(machine)


@pytest.mark.parametrize(
    ("code", "action"),
    [
        (4, Action.DRAIN),  # VOLATILE_DBE_DETECTED: isolate
        (85, Action.RESET_GPU),  # PENDING_ROW_REMAP: reset
        (30, Action.MONITOR),  # LOW_BANDWIDTH: triage
        (29, Action.CONFIGURE),  # PERSISTENCE_MODE: config
        (81, Action.DRAIN),  # UNCONTAINED_ERROR: isolate, an Xid
        (95, Action.DRAIN),  # EUD_TEST_FAILED: the only error of the EUD that is about the hardware
        (94, Action.CONFIGURE),  # EUD_NON_ZERO_EXIT_CODE
        (24, Action.CONFIGURE),  # NVML_LIB_BAD: isolate, but a library
        (122, Action.CONFIGURE),  # IMEX_UNHEALTHY: isolate, but software
        (126, Action.REBOOT),  # GPU_RECOVERY_REBOOT
        (4711, Action.DRAIN),  # no code of DCGM 4.6: the test of the hardware failed
    ],
)
def test_a_code_without_severity_has_that_of_dcgms_table(code: int, action: Action) -> None:
    words = {"warning": "CUDA_VISIBLE_DEVICES" if code != 4711 else "words", "error_id": code}
    verdict = judged(three("memory", "Fail", [words]))
    assert (verdict.outcome, verdict.action) == (Outcome.FAILED, action)


def test_the_code_of_a_reboot_counts_beside_a_severity() -> None:
    found = {"warning": "x", "error_id": 126, "error_severity": 2, "error_category": 18}
    assert judged(three("memory", "Fail", [found])).action is Action.REBOOT
    assert judged(three("memory", "Fail", [{**found, "error_id": 120}])).action is Action.DRAIN


def test_dcgms_table_is_whole() -> None:
    assert sorted(dcgm._errors()) == list(range(133))
