"""Whether an acceptance record and the files of its run are as they were written; who signed: cli/record.py."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from markupsafe import escape
from pydantic import ValidationError

from pytest_gpucluster import __version__
from pytest_gpucluster.core import safe_json
from pytest_gpucluster.core.errors import GpuClusterError
from pytest_gpucluster.core.sanitize import one_line
from pytest_gpucluster.report import chain, html, record
from pytest_gpucluster.report.events import read_log
from pytest_gpucluster.report.record import RECORD, STATEMENT
from pytest_gpucluster.report.words import as_utc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pytest_gpucluster.report.run_model import Run

PAGE = "report.html"
# what every version reads alike from the same events
_STABLE = (
    "run",
    "cluster",
    "simulated",
    "exit",
    "cluster_file",
    "profiles",
    "waivers",
    "nodes",
    "events",
    "evidence",
)
_HISTORY = re.compile(r'<section id="history">.*?</section>', re.DOTALL)
_TREND = re.compile(r'<p class="trend">.*?</p>', re.DOTALL)  # of a history too, in the cards
_HISTORY_LINK = re.compile(r'<a href="#history">[^<]*</a>')
_BLANK = re.compile(r"\n\s*\n")


@dataclass(frozen=True)
class Outcome:
    """One thing that was checked: `text` says what was found.

    failed: it is not as it was written. open: what was not checked, without which the record is no evidence.
    """

    text: str
    failed: bool = False
    open: str = ""


def verify(log: Path) -> Iterator[Outcome]:
    """Check the record beside a log against its form, the log, the page and the other files; not its signature."""
    yield from each(lambda: _verify(log))


def _verify(log: Path) -> Iterator[Outcome]:
    path = log.with_name(RECORD)
    data, document = load(path)
    checked = chain.check(log)
    if checked.problem:
        yield Outcome(checked.problem, failed=True)
    else:
        cut = f"; cut lines, whose events are lost: {', '.join(map(str, checked.cut))}" if checked.cut else ""
        yield Outcome(f"{log}: {checked.chain.lines} lines, each follows from all before it{cut}")
    run = read_log(log)
    yield from each(lambda: _events(path, document, run, log, checked))
    yield from each(lambda: _files(log.parent, document))
    yield from each(lambda: _page(log.with_name(PAGE), document, run))
    yield from each(lambda: _statement(log.with_name(STATEMENT), document, data, run))


def load(path: Path) -> tuple[bytes, dict[str, Any]]:
    """Return the bytes and the content of a record. GpuClusterError where it is none."""
    if not path.is_file():
        raise GpuClusterError(f"{path}: does not exist; `gpucluster report DIR` writes the record of a run")
    data = path.read_bytes()
    return data, parse_record(data, path)


def parse_record(data: bytes, path: Path) -> dict[str, Any]:
    """Return the content of a record. GpuClusterError where it is none, or is written otherwise than gpucluster does."""
    try:
        document: dict[str, Any] = safe_json.loads(data)
        record.Record.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise GpuClusterError(
            f"{path}: is no record of format 1: {one_line(key)}: {one_line(first['msg'])}"
        ) from None
    except ValueError as error:
        raise GpuClusterError(f"{path}: is not JSON: {one_line(str(error))}") from None
    if record.encode(document) != data:
        raise GpuClusterError(f"{path}: is not written as gpucluster writes it: its bytes were changed")
    return document


def each(check: Callable[[], Iterator[Outcome]]) -> Iterator[Outcome]:
    """Yield the outcomes of a check; an error is a failure, and the other checks continue."""
    try:
        yield from check()
    except GpuClusterError as error:
        yield Outcome(str(error), failed=True)
    except OSError as error:
        yield Outcome(f"{error.filename}: cannot be read ({error.strerror})", failed=True)


def _events(
    path: Path, document: dict[str, Any], run: Run, log: Path, checked: chain.Checked
) -> Iterator[Outcome]:
    """Compare the record with what the events hold."""
    stated, found = document["events"]["sha256"], checked.chain.sha256
    if stated != found:
        yield Outcome(
            f"{log}: has sha256 {found}, the record names {stated}: it is not the log of this record, or lines were "
            "changed, added or removed",
            failed=True,
        )
    made = {**record.of_events(run, checked), "evidence": list(record.evidence(log))}
    same_version = document["made_by"] == __version__
    keys = made if same_version else _STABLE
    wrong = [key for key in keys if _plain(made[key]) != _plain(document[key])]
    if wrong:
        yield Outcome(f"{path}: does not hold what {log} holds: {', '.join(wrong)}", failed=True)
    else:
        of = (
            "all keys"
            if same_version
            else f"of version {document['made_by']}, so compared are {', '.join(keys)}"
        )
        yield Outcome(f"{path}: holds what the events hold ({of})")


def _plain(value: Any) -> str:
    return as_utc(record.encode({"value": value}).decode())


def _files(folder: Path, document: dict[str, Any]) -> Iterator[Outcome]:
    wrong = False
    for name, stated in document["files"].items():
        path = folder / name
        if ".." in path.parts or not path.is_file() or path.is_symlink():
            why = "does not exist, and the record names it"
        elif (found := record.hash_of(path)) != stated:
            why = f"has sha256 {found}, the record names {stated}: the file was changed or written again"
        else:
            continue
        wrong = True
        yield Outcome(f"{path}: {why}", failed=True)
    if not wrong:
        yield Outcome(f"{folder}: {len(document['files'])} other files have the hashes of the record")


def _page(path: Path, document: dict[str, Any], run: Run) -> Iterator[Outcome]:
    """Compare the page with the page that the events make; times may be of any zone."""
    if PAGE not in document["files"]:
        yield Outcome(f"{path}: the record names no page; `gpucluster report DIR` writes both", failed=True)
        return
    page = path.read_text(encoding="utf-8", errors="replace")
    if document["made_by"] != __version__:
        yield _page_of_other_version(path, page, document)
        return
    shown, cut = _HISTORY.subn("", page, count=1)
    if cut:
        shown = _TREND.sub("", _HISTORY_LINK.sub("", shown, count=1))
    if _squeezed(shown) != _squeezed(html.render(run)):
        yield Outcome(f"{path}: does not show what the events hold", failed=True)
        return
    but = "; its section on earlier runs comes from a history and is not compared" if cut else ""
    yield Outcome(f"{path}: shows what the events hold{but}")


def _page_of_other_version(path: Path, page: str, document: dict[str, Any]) -> Outcome:
    words = (document["verdict"]["title"], document["verdict"]["nodes"], document["events"]["sha256"])
    missing = [word for word in words if str(escape(word)) not in page]
    if missing:
        return Outcome(f"{path}: does not show {'; '.join(missing)}", failed=True)
    return Outcome(
        f"{path}: shows verdict, nodes and the hash of the log; the rest is not compared, because version "
        f"{document['made_by']} wrote it and this is {__version__}"
    )


def _squeezed(page: str) -> str:
    return as_utc(_BLANK.sub("\n", page))


def _statement(path: Path, document: dict[str, Any], data: bytes, run: Run) -> Iterator[Outcome]:
    if record.encode(record.statement(run, document, data)) != path.read_bytes():
        yield Outcome(f"{path}: is not the statement of this record: one of the two was changed", failed=True)
    else:
        yield Outcome(f"{path}: is the in-toto statement of this record")
