"""What `dcgmi diag -r N -j` says: one line a test and GPU.

Formats: the JSON of DCGM 2 and 3 ("DCGM GPU Diagnostic", results with `gpu_ids`, or `gpu_id`), and of DCGM 4 ("DCGM
Diagnostic", results with `entity_group` and `entity_id`, and for what is about no entity a `test_summary`; the schema
is testing/python3/dcgm_diag_schema.json of its sources). Lists may hold null, statuses come in any case, warnings as
text, as objects or as lists of them; words may stand before the JSON.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_gpucluster import jsontext
from pytest_gpucluster.errors import ProbeError
from pytest_gpucluster.probes.base import last_line

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_STARTS = 100  # braces in the words before the JSON that are tried
ROOTS = ("DCGM Diagnostic", "DCGM GPU Diagnostic")


@dataclass(frozen=True)
class DcgmResult:
    """One test on one entity. `where` is like 'GPU 3', '' where it is about the node; `status` in lower case.

    `severities`: DCGM's own of its warnings (dcgmErrorSeverity_t in dcgm_errors.h), None where one has none.
    """

    category: str
    test: str
    where: str
    status: str
    warning: str = ""
    severities: frozenset[int | None] = frozenset()

    @property
    def failed(self) -> bool:
        """The test failed; 'warn' is DCGM's word for a failure of less weight."""
        return self.status in ("fail", "failed", "warn", "error")

    @property
    def skipped(self) -> bool:
        """The test did not run."""
        return self.status in ("skip", "skipped", "not run", "notrun")


@dataclass(frozen=True)
class DcgmDiag:
    """One run of the diagnostic: its results, and `problem` where DCGM could not run it."""

    results: tuple[DcgmResult, ...]
    problem: str = ""
    version: str = ""


def read(rc: int, out: str, err: str = "") -> DcgmDiag:
    """Read the output; ProbeError where it is not understood. A failing test exits with a status above 0 too."""
    found = _json_in(out)
    if found is None:
        said = last_line(err) or last_line(out)
        raise ProbeError(f"dcgmi diag: no JSON (exit {rc}): {said or 'no message'}")
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
    at = text.find("{")
    for _ in range(MAX_STARTS):
        if at < 0:
            return None
        try:
            found, _end = jsontext.raw_decode(text, at)
        except ValueError:
            at = text.find("{", at + 1)
            continue
        return found if isinstance(found, dict) else None
    return None


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    for entry in value if isinstance(value, list) else ():
        if isinstance(entry, dict):
            yield entry


def _results(root: dict[str, Any]) -> Iterator[DcgmResult]:
    for category in _objects(root.get("test_categories")):
        for test in _objects(category.get("tests")):
            results = list(_objects(test.get("results")))
            told = [_result(category, test, result, where) for result in results for where in _where(result)]
            summary = test.get("test_summary")
            if isinstance(summary, dict):
                whole = _result(category, test, summary, "")
                failed = [one for one in told if one.failed]
                graver = whole.severities.difference(*(one.severities for one in failed))
                if not told or (whole.failed and (not failed or graver)):
                    told.append(whole)  # a fault of no entity stands there alone, beside the entities' own
            yield from told


def _result(category: dict[str, Any], test: dict[str, Any], result: dict[str, Any], where: str) -> DcgmResult:
    warnings = result.get("warnings") or result.get("warning") or result.get("errors")
    return DcgmResult(
        str(category.get("category", "")),
        str(test.get("name", "")),
        where,
        str(result.get("status", "unknown")).lower(),
        _texts(warnings),
        frozenset(_severity(warning) for warning in (warnings if isinstance(warnings, list) else ())),
    )


def _severity(warning: Any) -> int | None:
    severity = warning.get("error_severity") if isinstance(warning, dict) else None
    return severity if isinstance(severity, int) else None


def _where(result: dict[str, Any]) -> list[str]:
    ids = result.get("gpu_ids", result.get("gpu_id"))
    if ids not in (None, ""):
        return [f"GPU {word.strip()}" for word in str(ids).split(",")]
    if "entity_id" in result:
        return [f"{result.get('entity_group', 'entity')} {result['entity_id']}"]
    return [""]


def _texts(value: Any) -> str:
    """Return the text of a warning however it is given."""
    if isinstance(value, list):
        return "; ".join(filter(None, (_texts(entry) for entry in value)))
    if isinstance(value, dict):
        return str(value.get("warning") or value.get("error") or value.get("message") or "")
    return str(value) if value else ""
