"""Reader of `dcgmi diag -r N -j`: one result per test and GPU.

Formats, from HelperJsonAddResult of dcgmi/Diag.cpp: DCGM 2 and 3 have "DCGM GPU Diagnostic" and results with `gpu_ids`
(3.3: `gpu_id`), warnings as text or (3.2 and later) as a list of objects, with a severity since 3.3; DCGM 4 has "DCGM
Diagnostic", results with `entity_group` and `entity_id`, and a `test_summary` for faults of no entity (its schema is
testing/python3/dcgm_diag_schema.json).
Lists may hold null, the case of a status varies, other text may precede and follow the JSON.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core import safe_json as jsontext
from pytest_gpucluster.core.errors import ProbeError
from pytest_gpucluster.core.probe import last_line

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_STARTS = 100  # braces before the JSON that are tried
ROOTS = ("DCGM Diagnostic", "DCGM GPU Diagnostic")
PASSED, WARNED = ("pass", "passed"), ("warn", "warning")
FAILED, SKIPPED = ("fail", "failed", "error"), ("skip", "skipped", "not run", "notrun")


@dataclass(frozen=True)
class DcgmWarning:
    """One warning; `severity` and `category` as in dcgm_errors.h (dcgmErrorSeverity_t, dcgmErrorCategory_t)."""

    text: str
    severity: int | None = None
    category: int | None = None


@dataclass(frozen=True)
class DcgmResult:
    """One test on one entity. `where`: 'GPU 3', '' for the node; `status` in lower case."""

    category: str
    test: str
    where: str
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


def read(rc: int, out: str, err: str = "") -> DcgmDiag:
    """Return the results; ProbeError if the output has an unknown form. dcgmi also exits above 0 if a test fails."""
    found = _json_in(out)
    if found is None:
        message = last_line(err) or last_line(out) or "no message"
        raise ProbeError(f"dcgmi diag: no JSON (exit {rc}): {message}")
    root = next((found[name] for name in ROOTS if isinstance(found.get(name), dict)), None)
    if root is None:
        raise ProbeError(f"dcgmi diag: JSON without {' or '.join(ROOTS)}: {sorted(found)[:5]}")
    metadata: dict[str, Any] = next(
        (of["metadata"] for of in (found, root) if isinstance(of.get("metadata"), dict)), {}
    )
    version = str(root.get("version") or metadata.get("DCGM Version") or metadata.get("version") or "")
    error = _texts(root.get("runtime_error"))
    problem = f"dcgmi diag: {error}" if error else ""
    results = tuple(_results(root))
    if not results and not problem:
        raise ProbeError(f"dcgmi diag: no test in its JSON (exit {rc}): {last_line(err) or 'no message'}")
    return DcgmDiag(results, problem, version)


def _json_in(text: str) -> dict[str, Any] | None:
    """Return the object of the diagnostic, else the first object: other objects may precede it."""
    first: dict[str, Any] | None = None
    at = text.find("{")
    for _ in range(MAX_STARTS):
        if at < 0:
            return first
        try:
            found, end = jsontext.raw_decode(text, at)
        except ValueError:
            found, end = None, at + 1
        if isinstance(found, dict):
            first = first or found
            if any(isinstance(found.get(name), dict) for name in ROOTS):
                return found
        at = text.find("{", end)
    return first


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    for entry in value if isinstance(value, list) else ():
        if isinstance(entry, dict):
            yield entry


def _results(root: dict[str, Any]) -> Iterator[DcgmResult]:
    for category in _objects(root.get("test_categories")):
        for test in _objects(category.get("tests")):
            results = list(_objects(test.get("results")))
            found = [_result(category, test, result, where) for result in results for where in _where(result)]
            summary = test.get("test_summary")
            if isinstance(summary, dict):
                whole = _result(category, test, summary, "")
                # the summary repeats the warnings of the entities; only it has the faults of no entity
                known = {warning for one in found for warning in one.warnings}
                bad = [one for one in found if one.status in (*FAILED, *WARNED)]
                if not found or (
                    whole.status in (*FAILED, *WARNED) and not (bad and known.issuperset(whole.warnings))
                ):
                    found.append(whole)
            yield from found


def _result(category: dict[str, Any], test: dict[str, Any], result: dict[str, Any], where: str) -> DcgmResult:
    warnings = result.get("warnings") or result.get("warning") or result.get("errors")
    return DcgmResult(
        str(category.get("category", "")),
        str(test.get("name", "")),
        where,
        str(result.get("status", "no status")).lower(),
        tuple(_warning(one) for one in (warnings if isinstance(warnings, list) else [warnings]) if one),
    )


def _warning(value: Any) -> DcgmWarning:
    numbers = (
        [value.get(name) for name in ("error_severity", "error_category")] if isinstance(value, dict) else []
    )
    severity, category = (it if isinstance(it, int) else None for it in numbers or (None, None))
    return DcgmWarning(_texts(value), severity, category)


def _where(result: dict[str, Any]) -> list[str]:
    ids = result.get("gpu_ids", result.get("gpu_id"))
    if ids not in (None, "", -1):  # -1: no GPU
        return [f"GPU {word.strip()}" for word in str(ids).split(",")]
    if "entity_id" in result:
        return [f"{result.get('entity_group', 'entity')} {result['entity_id']}"]
    return [""]


def _texts(value: Any) -> str:
    """Return the text of a warning in any of its forms."""
    if isinstance(value, list):
        return "; ".join(filter(None, (_texts(entry) for entry in value)))
    if isinstance(value, dict):
        # `warnings`: form of the software tests of dcgmi 3.3
        return str(
            next((value[name] for name in ("warning", "warnings", "error", "message") if value.get(name)), "")
        )
    return str(value) if value else ""
