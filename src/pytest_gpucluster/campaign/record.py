"""The acceptance record of a campaign: one file over all its groups, and whether it and the logs of its groups are as they were."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gpucluster import __version__
from pytest_gpucluster.campaign.child import outcome_of
from pytest_gpucluster.campaign.model import FAILED, FIT, Campaign, Group, Kind, NodeView, Result, View
from pytest_gpucluster.campaign.planner import Planner
from pytest_gpucluster.core import safe_json
from pytest_gpucluster.core.errors import GpuClusterError
from pytest_gpucluster.report import chain, record_check
from pytest_gpucluster.report.atomic_write import write_whole
from pytest_gpucluster.report.record import encode
from pytest_gpucluster.report.record_check import Outcome, each
from pytest_gpucluster.report.run_folder import log_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucluster.campaign.summary import Summary

_FORM = "campaign_record"  # the first key; its value is the version of the form
_VERSION = 1
_START = f'{{\n"{_FORM}":'.encode()


def write(summary: Summary, folder: Path, *, group: int | None) -> Path:
    """Write the record of a campaign that ended into the folder of its groups; a signed one of an earlier end stays."""
    path = folder / time.strftime("record-%Y%m%dT%H%M%S.json")
    document = {_FORM: _VERSION, "made_by": __version__, **summary.as_dict()}
    for one in document["groups"]:
        if Path(one["folder"]).is_relative_to(folder.absolute()):  # so that the folder can be moved
            one["folder"] = str(Path(one["folder"]).relative_to(folder.absolute()))
    write_whole(path, encode(document), group=group)
    return path


def is_one(path: Path) -> bool:
    """Return whether a file is the record of a campaign."""
    try:
        with path.open("rb") as file:
            return file.read(len(_START)) == _START
    except OSError:
        return False


def load(path: Path) -> tuple[bytes, dict[str, Any]]:
    """Return the bytes and the content of a record. GpuClusterError where it is none, or is written otherwise than here."""
    data = path.read_bytes()
    try:
        document: dict[str, Any] = safe_json.loads(data)
        same = encode(document) == data
    except (ValueError, AttributeError) as error:
        raise GpuClusterError(f"{path}: is no record of a campaign: {error}") from None
    if document.get(_FORM) != _VERSION or not same:
        raise GpuClusterError(f"{path}: is not written as gpucluster writes it: its bytes were changed")
    return data, document


def title(document: dict[str, Any]) -> str:
    """Return the verdict in words: ACCEPTED, 16 of 16 nodes fit."""
    fit = sum(row["state"] == FIT for row in document["nodes"])
    simulated = ", SIMULATED hardware" if document["simulated"] else ""
    return f"{document['verdict']}, {fit} of {len(document['nodes'])} nodes fit{simulated}"


def verify(path: Path) -> Iterator[Outcome]:
    """Check a record against the logs of its groups, and its verdict against what they found; not its signature."""
    yield from each(lambda: _verify(path))


def _verify(path: Path) -> Iterator[Outcome]:
    _, document = load(path)
    try:
        groups = [_group(document, one, path.parent) for one in document["groups"] if one["run"]]
        kinds = {one["name"]: Kind(**{**one, "suites": tuple(one["suites"])}) for one in document["kinds"]}
        stated = {one["group"]: one["outcomes"] for one in document["groups"]}
        wrong = list(_not_proved(document, kinds))
    except (KeyError, TypeError, ValueError) as error:
        raise GpuClusterError(f"{path}: is no record of a campaign of this version: {error!r}") from None
    good = 0
    for group in groups:
        found = list(each(partial(_of_group, group, kinds[group.kind], stated[group.number])))
        yield from found
        good += not found
    if good:
        yield Outcome(
            f"{path}: {good} of {len(groups)} groups have the logs, records and outcomes that it names"
        )
    for node in wrong:
        yield Outcome(f"{path}: its groups do not prove that {node} is fit, as it says", failed=True)
    accepted = not document["problems"] and all(row["state"] == FIT for row in document["nodes"])
    if accepted != (document["verdict"] == "ACCEPTED"):
        yield Outcome(f"{path}: its verdict {document['verdict']} is not that of its nodes", failed=True)
    elif not wrong:
        yield Outcome(f"{path}: its verdict follows from its groups")


def _group(document: dict[str, Any], one: dict[str, Any], folder: Path) -> Group:
    began, ended = float(one["began"]), float(one["ended"])
    where = str(folder / one["folder"])
    nodes = tuple(one["nodes"])
    return Group(
        one["group"], 0, one["suites"], nodes, False, where, "", "", began, ended, ended, one["run"], one["sha256"]
    )  # fmt: skip


def _of_group(group: Group, kind: Kind, stated: dict[str, str]) -> Iterator[Outcome]:
    """Yield what is not as the record says it."""
    log = log_in(Path(group.folder))
    if not log.is_file():
        yield Outcome(f"{log}: does not exist, and the record names it (group {group.number})", failed=True)
        return
    found = chain.check(log).chain.sha256
    if found != group.sha256:
        yield Outcome(
            f"{log}: has sha256 {found}, the record names {group.sha256}: it was changed", failed=True
        )
        return
    outcomes = {node: state for node, (state, _) in outcome_of(group, kind, {}).nodes.items()}
    if outcomes != stated:
        yield Outcome(f"{log}: shows {outcomes}, the record says {stated}", failed=True)
    yield from (outcome for outcome in record_check.verify(log) if outcome.failed)


def _not_proved(document: dict[str, Any], kinds: dict[str, Kind]) -> Iterator[str]:
    """Yield the nodes that the record calls fit, and that are not by the outcomes of its groups.

    With how many partners a node must pass depends on those that could be allocated and did not fail.
    """
    rows = {row["node"]: row["state"] for row in document["nodes"]}
    views = {
        row["node"]: NodeView(idle=False, in_service=row["in_service"], share=row["share"])
        for row in document["nodes"]
    }
    failed = {node: "" for node, state in rows.items() if state == FAILED}
    results = [
        Result(
            one["suites"], node, one["group"], tuple(one["nodes"]), one["ended"], outcome, left=node in one["left"]
        )
        for one in document["groups"]
        for node, outcome in one["outcomes"].items()
    ]  # fmt: skip
    campaign = Campaign(
        0, document["cluster"], document["campaign"], True, tuple(rows), tuple(kinds.values()), 0.0
    )
    planner = Planner(View(campaign, tuple(results), views, limit=0, bad=failed))
    yield from (node for node, state in rows.items() if state == FIT != planner.state(node))
