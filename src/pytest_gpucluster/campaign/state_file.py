"""campaign.json: what a campaign has found, beside the folders of its groups, so that both can be signed as one folder.

Nothing that it states is believed where it is verified (cli/signed_folder.py): the logs of the groups are judged again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.campaign.model import Campaign, Kind, RunGroup, SlurmNode
from pytest_gpucluster.core import safe_json
from pytest_gpucluster.core.errors import GpuClusterError
from pytest_gpucluster.core.sanitize import one_line
from pytest_gpucluster.report.machine.atomic_write import take_away, write_whole
from pytest_gpucluster.report.machine.run_folder import LINKS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpucluster.campaign.summary import Summary

NAME = "campaign.json"
_FORMAT = 2
_VARYING = ("written", "ended")  # keys that differ between two readings of one state


@dataclass(frozen=True)
class StatedCampaign:
    """The content of a file. `outcomes` and `left` are by the number of a group, `states` and `seen` by node.

    `verdict` is with the problems of the cluster.
    """

    document: dict[str, Any]
    verdict: tuple[object, object]
    campaign: Campaign
    groups: tuple[RunGroup, ...]
    outcomes: Mapping[int, Mapping[str, str]]
    left: Mapping[int, frozenset[str]]
    states: Mapping[str, str]
    seen: Mapping[str, SlurmNode]


def write(summary: Summary, folder: Path, *, group: int | None) -> Path:
    """Write the state of a campaign that ended into the folder of its groups, and remove the links in it."""
    for one in summary.groups:
        if Path(one.folder).parent == folder.absolute():
            for link in LINKS:  # a folder with links cannot be signed
                take_away(Path(one.folder) / link)
    write_whole(folder / NAME, encode(document_of(summary)), group=group)
    return folder / NAME


def document_of(summary: Summary) -> dict[str, Any]:
    """Return the state of a campaign; the folder of a group by its name, since the whole can be moved."""
    document = {"format": _FORMAT, **summary.as_dict()}
    for row in document["nodes"]:
        row.pop("suites")  # the history's, and their age changes
    for one in document["groups"]:
        one["folder"] = Path(one["folder"]).name
    return document


def encode(document: dict[str, Any]) -> bytes:
    """Return the bytes of a file."""
    return f"{json.dumps(document, indent=1, allow_nan=False)}\n".encode()


def difference(one: dict[str, Any], other: dict[str, Any]) -> str:
    """Return the first key in which two documents differ, '' for none."""
    keys = [key for key in {**one, **other} if key not in _VARYING]
    return next((key for key in keys if one.get(key) != other.get(key)), "")


def parse_state(data: bytes, path: Path) -> StatedCampaign:
    """Return the content of a file. GpuClusterError where it is not as `write` writes it."""
    try:
        document = safe_json.loads(data)
        json.dumps(document, ensure_ascii=False).encode()  # no name has a lone surrogate
        return _stated(document, data)
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise GpuClusterError(f"{path}: is not the state of a campaign: {one_line(str(error), 200)}") from None


def _stated(document: dict[str, Any], data: bytes) -> StatedCampaign:
    if encode(document) != data or document["format"] != _FORMAT:
        raise ValueError("another program or version wrote it")
    kinds = tuple(map(_kind, document["kinds"]))
    rows = {str(row["node"]): row for row in document["nodes"]}
    numbers = {int(one["group"]) for one in document["groups"]}
    names = {kind.name for kind in kinds}
    if (len(rows), len(numbers), len(names)) != tuple(len(document[key]) for key in ("nodes", "groups", "kinds")):
        raise ValueError("a node, a group or a kind of groups is listed twice")
    campaign = Campaign(
        number=0,
        cluster=str(document["cluster"]),
        name=str(document["campaign"]),
        simulated=document["simulated"] is not False,
        nodes=tuple(rows),
        kinds=kinds,
        began=float(document["began"]),
    )
    return StatedCampaign(
        document=document,
        verdict=(document["verdict"], document["problems"]),
        campaign=campaign,
        groups=tuple(map(_group, document["groups"])),
        outcomes={int(one["group"]): dict(one["outcomes"]) for one in document["groups"]},
        left={int(one["group"]): frozenset(map(str, one["left"])) for one in document["groups"]},
        states={node: str(row["state"]) for node, row in rows.items()},
        seen={
            node: SlurmNode(
                idle=False, in_service=row["in_service"] is True, share=str(row["share"]), why=str(row["why"])
            )
            for node, row in rows.items()
        },
    )


def _kind(one: dict[str, Any]) -> Kind:
    return Kind(
        name=str(one["name"]),
        expression=str(one["expression"]),
        suites=tuple(map(str, one["suites"])),
        size=int(one["size"]),
        partners=int(one["partners"]),
        larger=one["larger"] is True,
    )


def _group(one: dict[str, Any]) -> RunGroup:
    return RunGroup(
        number=int(one["group"]),
        campaign=0,
        kind=str(one["suites"]),
        nodes=tuple(map(str, one["nodes"])),
        waits=False,
        folder=str(one["folder"]),
        owner="",
        child="",
        began=float(one["began"]),
        until=0.0,
        ended=None if one["ended"] is None else float(one["ended"]),
        run=str(one["run"]),
        sha256=str(one["sha256"]),
    )
