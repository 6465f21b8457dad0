"""Reader and check of `dcgmi diag -r N -j`: one result per test and GPU.

Formats, from HelperJsonAddResult of dcgmi/Diag.cpp: DCGM 2 and 3 have "DCGM GPU Diagnostic" and results with `gpu_ids`
(3.3: `gpu_id`), warnings as text or (3.2 and later) as a list of objects, with a severity since 3.3; DCGM 4 has "DCGM
Diagnostic", results with `entity_group` and `entity_id`, and a `test_summary` for faults of no entity (its schema is
testing/python3/dcgm_diag_schema.json). A failure without a severity takes no node out of service.
Lists may hold null, the case of a status varies, other text may precede and follow the JSON.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core import safe_json
from pytest_gpucluster.core.check import Action, Advisory, Finding, Metric, check, revised
from pytest_gpucluster.core.command_end import CommandEnd
from pytest_gpucluster.core.errors import NotAvailable, ProbeError
from pytest_gpucluster.core.finding import Quote
from pytest_gpucluster.core.part import Part, gpu
from pytest_gpucluster.core.probe import last_line
from pytest_gpucluster.suites.burnin.load_checks import unmeasured

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucluster.core.check import Judgement, Verdict
    from pytest_gpucluster.suites.burnin.config import BurninConfig
    from pytest_gpucluster.suites.burnin.results import BurninResult

NODE = Part("node")
MAX_STARTS = 100  # braces before the JSON that are tried
ROOTS = ("DCGM Diagnostic", "DCGM GPU Diagnostic")
PASSED, WARNED = ("pass", "passed"), ("warn", "warning")
FAILED, SKIPPED = ("fail", "failed", "error"), ("skip", "skipped", "not run", "notrun")
# dcgmErrorSeverity_t of dcgm_errors.h; a GPU is fit for work with an error of the severity none, monitor or config
_ISOLATE, _CONFIG, _RESET = 2, 5, 6
_MILD = frozenset({None, 0, 1, _CONFIG})
# dcgmErrorCategory_t: configuration, library, CUDA, EUD, other software, DCGM itself. Their errors are no fault of the
# hardware, except an EUD (NVIDIA's extended diagnostic) that failed: it has the severity isolate
_EUD = 7
_SOFTWARE_CATEGORIES = frozenset({3, 4, 6, _EUD, 8, 16})
# DCGM_FR_GPU_RECOVERY_REBOOT: its severity is isolate, its message asks for a reboot of the node
_REBOOT = 126
_DEPLOYMENT = "Deployment"  # the category of software tests; others: Hardware, Integration, Stress


@dataclass(frozen=True)
class DcgmWarning:
    """One warning; `code`, `severity` (None before DCGM 3.3) and `category` as in dcgm_errors.h."""

    text: str
    code: int | None = None
    severity: int | None = None
    category: int | None = None


@dataclass(frozen=True)
class DcgmResult:
    """One test on one entity. `where`: a GPU, another device or the node; `status` in lower case."""

    category: str
    test: str
    where: Part
    status: str
    warnings: tuple[DcgmWarning, ...] = ()

    @property
    def warning(self) -> str:
        """The texts of all warnings."""
        return "; ".join(warning.text for warning in self.warnings if warning.text)


@dataclass(frozen=True)
class DcgmDiag:
    """One run of the diagnostic: its results, and `problem` if DCGM could not run it."""

    results: tuple[DcgmResult, ...]
    problem: str = ""
    version: str = ""


def read(rc: int | None, out: str, err: str = "") -> DcgmDiag:
    """Return the results (`rc` None: dcgmi did not end); ProbeError if the output has an unknown form. dcgmi also exits above 0 if a test fails."""
    end = CommandEnd(rc)
    found = _json_in(out)
    if found is None:
        message = last_line(err) or last_line(out) or "no message"
        raise ProbeError(f"dcgmi diag: no JSON ({end}): {message}")
    root = next((found[name] for name in ROOTS if isinstance(found.get(name), dict)), None)
    if root is None:
        raise ProbeError(f"dcgmi diag: JSON without {' or '.join(ROOTS)}: {sorted(found)[:5]}")
    metadata = safe_json.as_dict(found.get("metadata")) or safe_json.as_dict(root.get("metadata"))
    version = str(root.get("version") or metadata.get("DCGM Version") or metadata.get("version") or "")
    error = _texts(root.get("runtime_error"))
    problem = f"dcgmi diag: {error}" if error else ""
    results = tuple(_results(root))
    if not results and not problem:
        raise ProbeError(f"dcgmi diag: no test in its JSON ({end}): {last_line(err) or 'no message'}")
    return DcgmDiag(results, problem, version)


def _json_in(text: str) -> dict[str, Any] | None:
    """Return the object of the diagnostic, else the first object: other objects may precede it."""
    first: dict[str, Any] | None = None
    at = text.find("{")
    for _ in range(MAX_STARTS):
        if at < 0:
            return first
        try:
            found, end = safe_json.raw_decode(text, at)
        except ValueError:
            found, end = None, at + 1
        if isinstance(found, dict):
            first = first or found
            if any(isinstance(found.get(name), dict) for name in ROOTS):
                return found
        at = text.find("{", end)
    return first


def _results(root: dict[str, Any]) -> Iterator[DcgmResult]:
    for category in safe_json.as_dicts(root.get("test_categories")):
        for test in safe_json.as_dicts(category.get("tests")):
            results = safe_json.as_dicts(test.get("results"))
            found = [_result(category, test, result, where) for result in results for where in _where(result)]
            summary = test.get("test_summary")
            if isinstance(summary, dict):
                whole = _result(category, test, summary, NODE)
                # the summary repeats the warnings of the entities; only it has the faults of no entity
                known = {warning for one in found for warning in one.warnings}
                bad = [one for one in found if one.status in (*FAILED, *WARNED)]
                repeated = bad and known.issuperset(whole.warnings)
                if not found or (whole.status in (*FAILED, *WARNED) and not repeated):
                    found.append(whole)
            yield from found


def _result(category: dict[str, Any], test: dict[str, Any], result: dict[str, Any], where: Part) -> DcgmResult:
    warnings = result.get("warnings") or result.get("warning") or result.get("errors")
    return DcgmResult(
        str(category.get("category", "")),
        str(test.get("name", "")),
        where,
        str(result.get("status", "no status")).lower(),
        tuple(_warning(one) for one in (warnings if isinstance(warnings, list) else [warnings]) if one),
    )


def _warning(value: Any) -> DcgmWarning:
    if not isinstance(value, dict):
        return DcgmWarning(_texts(value))
    code, severity, category = (
        number if isinstance(number := value.get(name), int) else None
        for name in ("error_id", "error_severity", "error_category")
    )
    return DcgmWarning(_texts(value), code, severity, category)


def _where(result: dict[str, Any]) -> list[Part]:
    ids = result.get("gpu_ids", result.get("gpu_id"))
    if ids not in (None, "", -1):  # -1: no GPU
        return [_entity("GPU", word.strip()) for word in str(ids).split(",")]
    if "entity_id" in result:
        return [_entity(str(result.get("entity_group", "entity")), str(result["entity_id"]))]
    return [NODE]


def _entity(group: str, number: str) -> Part:
    is_gpu = group == "GPU" and number.isdigit()
    return gpu(int(number)) if is_gpu else Part("device", name=f"{group} {number}")


def _texts(value: Any) -> str:
    """Return the text of a warning in any of its forms."""
    if isinstance(value, list):
        return "; ".join(filter(None, (_texts(entry) for entry in value)))
    if isinstance(value, dict):
        # `warnings`: form of the software tests of dcgmi 3.3
        names = ("warning", "warnings", "error", "message")
        return str(next(filter(None, map(value.get, names)), ""))
    return str(value) if value else ""


def _with_software_cause(verdict: Verdict, *_facts: object) -> Verdict:
    """Return another cause if no finding of DCGM is about the hardware."""
    if not verdict.findings or verdict.action is not Action.CONFIGURE:
        return verdict
    cause = "NVIDIA's diagnostic found wrong settings or software of the node; the hardware passed"
    return replace(verdict, cause=cause, hint="correct what DCGM reports above; repeat with dcgmi diag -r 1")


@revised(_with_software_cause)
@check(
    "burnin.dcgm",
    cause="NVIDIA's own diagnostic fails",
    hint="dcgmi diag -r 3 -v; /var/log/nvidia-dcgm; return the GPU if it fails again",
    action=Action.DRAIN,
    never_healthy="DCGM classes the error as one that requires isolation or a reset of the GPU; errors of settings and software, those "
    "to be triaged, and those without a severity are milder",
)
def dcgm(burnin: BurninResult, node_name: str, config: BurninConfig) -> Judgement:
    """Every test of `dcgmi diag` passes."""
    totals = burnin.nodes[node_name]
    if totals.dcgm is None:
        yield from unmeasured(totals, "dcgm", config=config)
        return
    try:
        found = read(totals.dcgm["rc"], str(totals.dcgm["out"]), str(totals.dcgm.get("err", "")))
    except ProbeError as error:
        found = DcgmDiag((), str(error))
    if found.problem:
        yield NotAvailable(found.problem)
    by_status = Counter(result.status for result in found.results)
    for result in found.results:
        yield from _judged(result)
    if found.results:
        yield Metric("dcgm_passed", sum(by_status[status] for status in PASSED), "tests")
    beyond = {result.status for result in found.results if result.category != _DEPLOYMENT}
    if set(by_status) <= {*SKIPPED} and not found.problem:
        raise NotAvailable("dcgmi diag skipped every test")
    if beyond and beyond <= {*SKIPPED}:
        # DCGM does not allow them on this product (is_allowed), or a plugin is not installed
        raise NotAvailable("dcgmi diag skipped every test of the hardware and ran only those of software")


def _judged(result: DcgmResult) -> Judgement:
    """Yield the finding of one result with its action, or an advisory if a warning proves no fault."""
    warning = f": {result.warning}" if result.warning else ""
    where, action = result.where, _action(result)
    measured = Quote(f"{result.test} ({result.category}): {result.status}{warning}")
    code = re.sub(r"\W+", "_", result.test.lower()).strip("_") or "test"
    if result.status in FAILED or (result.status in WARNED and not _is_mild(result)):
        yield Finding(where, measured, "pass", action, code=code)
    elif result.status in WARNED or (result.status in PASSED and result.warnings):
        yield Advisory(where, measured, "pass without a warning", code=code)
    elif result.status not in (*PASSED, *SKIPPED):
        yield NotAvailable(f"dcgmi diag: the status {result.status!r} of {result.test} on {where} is not known")


def _is_mild(result: DcgmResult) -> bool:
    """Return whether a GPU is fit for work with these warnings."""
    return _action(result) is Action.CONFIGURE or all(it.severity in _MILD for it in result.warnings)


def _action(result: DcgmResult) -> Action:
    """Return the action that a failed test requires."""
    return max(map(_warning_action, result.warnings), key=list(Action).index, default=Action.MONITOR)


def _warning_action(warning: DcgmWarning) -> Action:
    """Return the action for DCGM's severity; triage, as of a bandwidth below a bound of DCGM, proves no fault."""
    if warning.code == _REBOOT:
        return Action.REBOOT
    failed_eud = warning.category == _EUD and warning.severity == _ISOLATE
    software = warning.category in _SOFTWARE_CATEGORIES and not failed_eud
    if software or warning.severity == _CONFIG:
        return Action.CONFIGURE
    return {_ISOLATE: Action.DRAIN, _RESET: Action.RESET_GPU}.get(warning.severity or 0, Action.MONITOR)
