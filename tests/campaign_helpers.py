"""Campaigns that have ended, with their history, folders and logs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from report_helpers import a_run, failing, passing, write_run

from pytest_gpucluster.campaign import state_file
from pytest_gpucluster.campaign.child import outcome_of
from pytest_gpucluster.campaign.model import Kind, RunGroup
from pytest_gpucluster.campaign.planner import Choice
from pytest_gpucluster.campaign.store import CampaignStore
from pytest_gpucluster.campaign.summary import summarize

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

_Any = TypeVar("_Any")
ALONE = Kind("alone", "gpu", ("gpu",))


@dataclass
class ACampaign:
    """A campaign that ended: its folder and its history."""

    root: Path
    store: CampaignStore

    def group(self, number: int) -> Path:
        """The folder of the run of a group."""
        return next((self.root / f"{number:06d}").glob("2026*"))

    def state(self, *edits: Callable[[dict[str, Any]], object]) -> None:
        """Edit campaign.json, as it is written."""
        path = self.root / "campaign.json"
        document = json.loads(path.read_text())
        for edit in edits:
            edit(document)
        path.write_bytes(state_file.encode(document))


def _always(answer: _Any, _: object) -> _Any:
    return answer


def run_campaign(folder: Path, results: Sequence[tuple[str, bool]], *, repaired: Sequence[str] = ()) -> ACampaign:
    """Run a campaign of one group for each result; `repaired`: nodes whose results until then count as repaired ones."""
    root, nodes = folder / "reports" / "campaign-july", tuple(dict.fromkeys(node for node, _ in results))
    folder.mkdir(exist_ok=True)
    store = CampaignStore(folder / "h.db", create=True)
    campaign = store.open_campaign("prod", "july", nodes, (ALONE,), simulated=False)
    for number, (node, ok) in enumerate(results, 1):
        if number == len(results):
            store.mark_left(campaign, repaired)
        claimed = RunGroup(0, campaign.number, "alone", (node,), False, "", "m-1-2", "", 1.0, 2.0)
        choice = Choice(ALONE, (node,), False)
        group = store.claim(campaign, partial(_always, choice), partial(_always, claimed))
        assert group is not None
        own = root / f"{group.number:06d}"
        events = a_run([passing(node) if ok else failing(node)], nodes=[node], finish=int(not ok))
        run = f"2026112{number}T020000-1"
        write_run(own / run, *({**it, "run": run} for it in events))
        (own / "latest").symlink_to(run)
        (own / "output.txt").write_text("1 passed\n")
        store.started(group, "", str(own))
        store.release(group, outcome_of(store.groups(campaign, "id = ?", (group.number,))[0], ALONE, {}))
    store.close_campaign(campaign)
    state_file.write(summarize(store, campaign, now=4.0), root, group=None)
    return ACampaign(root, store)
