"""The state of campaigns, in the file of the history. A node is claimed for one group at a time, in one transaction.

Any number of processes, on any number of machines, may work on one campaign: each sees what the others test. What a
process that was killed has claimed is released by another one (campaign/campaign.py), with the results of its run if that
ended well.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from pytest_gpucluster.campaign.model import Campaign, Kind, NodeResult, RunGroup, SlurmNode
from pytest_gpucluster.core.errors import ConfigError
from pytest_gpucluster.core.grouping import grouped
from pytest_gpucluster.kit.suite_work import PairResult
from pytest_gpucluster.report.history.store import History
from pytest_gpucluster.report.proof import FAILED, NOT_PROVED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pytest_gpucluster.campaign.child import GroupResult
    from pytest_gpucluster.campaign.planner import Choice
_GROUP = "id, campaign, kind, nodes, waits, folder, owner, child, began, until, ended, run_id, sha256"


class CampaignStore(History):
    """An open history, with the campaigns in it."""

    def campaign(self, cluster: str, name: str) -> Campaign | None:
        """Return a campaign; None if there is none of this name."""
        rows = self.query(
            "SELECT id, cluster, name, simulated, nodes, kinds, began, closed FROM campaigns WHERE cluster = ? AND name = ?",
            (cluster, name),
        )
        return _campaign(rows[0]) if rows else None

    def names(self, cluster: str | None = None) -> list[tuple[str, str]]:
        """Return (cluster, name) of all campaigns, the newest last."""
        rows = self.query("SELECT cluster, name FROM campaigns ORDER BY began")
        return [(one, name) for one, name in rows if cluster in (None, one)]

    def open_campaign(
        self,
        cluster: str,
        name: str,
        nodes: Sequence[str],
        kinds: Sequence[Kind],
        *,
        simulated: bool,
        newest: float = 0.0,
    ) -> Campaign:
        """Begin a campaign, or continue the one of this name; ConfigError if that has other suites.

        One that has ended begins again: nodes that failed, or were not proved, are tested once more, and results from
        before `newest` (seconds since the epoch) count no more.
        """
        with self._readable_errors(), self._transaction():
            known = self.campaign(cluster, name)
            if known is None:
                self._db.execute(
                    "INSERT INTO campaigns (cluster, name, simulated, nodes, kinds, began) VALUES (?, ?, ?, ?, ?, ?)",
                    (cluster, name, simulated, json.dumps(nodes), _kinds_text(kinds), time.time()),
                )
            else:
                if known.kinds != tuple(kinds):
                    was = ", ".join(dict.fromkeys(suite for kind in known.kinds for suite in kind.suites))
                    raise ConfigError(
                        f"--campaign={name}: was begun with {was or 'no suite'}, in other groups or with another -m: give this one "
                        "another name"
                    )
                if known.closed is not None:
                    self._reopen(known, newest)
                self._db.execute("UPDATE campaigns SET nodes = ? WHERE id = ?", (json.dumps(nodes), known.number))
        found = self.campaign(cluster, name)
        assert found is not None
        return found

    def _reopen(self, campaign: Campaign, newest: float) -> None:
        self._db.execute(
            'DELETE FROM campaign_results WHERE campaign = ? AND "group" IN '
            "(SELECT id FROM campaign_groups WHERE campaign = ? AND ended < ?)",
            (campaign.number, campaign.number, newest),
        )
        self._db.execute(
            'UPDATE campaign_results SET "left" = 1 WHERE campaign = ? AND outcome IN (?, ?)',
            (campaign.number, FAILED, NOT_PROVED),
        )
        self._db.execute("UPDATE campaigns SET closed = NULL, began = ? WHERE id = ?", (time.time(), campaign.number))

    def close_campaign(self, campaign: Campaign) -> None:
        """Note that a campaign has come to its end."""
        self._write("UPDATE campaigns SET closed = ? WHERE id = ?", (time.time(), campaign.number))

    # -- groups

    def leases(self, cluster: str) -> dict[str, bool]:
        """Return the nodes under test, of all campaigns of a cluster, with whether their group waits for busy ones."""
        rows = self.query(
            'SELECT c.node, g.waits FROM campaign_leases c JOIN campaign_groups g ON g.id = c."group" '
            "WHERE c.cluster = ?",
            (cluster,),
        )
        return {node: bool(waits) for node, waits in rows}

    def claim(
        self, campaign: Campaign, choose: Callable[[CampaignStore], Choice | None], group: Callable[[Choice], RunGroup]
    ) -> RunGroup | None:
        """Choose a group and claim its nodes, while no other process does; None if there is nothing to choose."""
        with self._readable_errors(), self._transaction():
            choice = choose(self)
            if choice is None:
                return None
            made = group(choice)
            number = self._db.execute(
                "INSERT INTO campaign_groups (campaign, kind, nodes, waits, folder, owner, child, began, until, run_id, sha256) "
                "VALUES (?, ?, ?, ?, ?, ?, '', ?, ?, '', '')",
                (
                    *(campaign.number, made.kind, json.dumps(made.nodes), made.waits, made.folder),
                    *(made.owner, made.began, made.until),
                ),
            ).lastrowid
            self._db.executemany(
                "INSERT INTO campaign_leases VALUES (?, ?, ?)",
                [(campaign.cluster, node, number) for node in made.nodes],
            )
        return self.groups(campaign, "id = ?", (number,))[0]

    def started(self, group: RunGroup, child: str, folder: str) -> None:
        """Note which process tests a group: from here on it lives on without its owner."""
        self._write("UPDATE campaign_groups SET child = ?, folder = ? WHERE id = ?", (child, folder, group.number))

    def live_groups(self, cluster: str) -> list[RunGroup]:
        """Return the groups, of all campaigns of a cluster, whose nodes are claimed."""
        with self._readable_errors():
            rows = self._db.execute(
                f'SELECT {_GROUP} FROM campaign_groups WHERE id IN (SELECT "group" FROM campaign_leases WHERE cluster = ?)',
                (cluster,),
            ).fetchall()
        return [_group(row) for row in rows]

    def groups(self, campaign: Campaign, where: str = "1", values: Sequence[object] = ()) -> list[RunGroup]:
        """Return the groups of a campaign, in the order of their start."""
        rows = self.query(
            f"SELECT {_GROUP} FROM campaign_groups WHERE campaign = ? AND {where} ORDER BY id",
            (campaign.number, *values),
        )
        return [_group(row) for row in rows]

    def release(self, group: RunGroup, outcome: GroupResult) -> bool:
        """Store how a group ended and release its nodes, in one transaction. False: another process was first."""
        with self._readable_errors(), self._transaction():
            if not self._db.execute('DELETE FROM campaign_leases WHERE "group" = ?', (group.number,)).rowcount:
                return False
            self._db.execute(
                "UPDATE campaign_groups SET ended = ?, run_id = ?, sha256 = ? WHERE id = ?",
                (time.time(), outcome.run, outcome.sha256, group.number),
            )
            self._db.executemany(
                "INSERT OR REPLACE INTO campaign_results VALUES (?, ?, ?, ?, ?, ?, ?, 0)",
                [
                    (group.campaign, group.kind, node, group.number, state, message, outcome.boots.get(node, ""))
                    for node, (state, message) in outcome.nodes.items()
                ],
            )
            self._db.executemany(
                "INSERT OR REPLACE INTO campaign_pairs VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                [
                    (group.campaign, group.number, suite, it.name, *it.nodes, it.value, it.problem)
                    for suite, found in outcome.pairs.items()
                    for it in found
                ],
            )
        return True

    # -- results

    def results(self, campaign: Campaign) -> tuple[NodeResult, ...]:
        """Return the results of all groups, in the order of their start."""
        rows = self.query(
            'SELECT r.kind, r.node, r."group", g.nodes, g.ended, r.outcome, r.message, r.boot, r."left" FROM campaign_results r '
            'JOIN campaign_groups g ON g.id = r."group" WHERE r.campaign = ? ORDER BY r."group", r.node',
            (campaign.number,),
        )
        return tuple(
            NodeResult(kind, node, group, tuple(json.loads(nodes)), ended, outcome, message, boot, bool(left))
            for kind, node, group, nodes, ended, outcome, message, boot, left in rows
        )

    def group_seconds(self, campaign: Campaign) -> dict[str, list[float]]:
        """Return {kind: seconds of each complete run of a group}, of all campaigns of the cluster with the same kinds."""
        rows = self.query(
            "SELECT g.kind, r.finished - r.started FROM campaign_groups g JOIN campaigns c ON c.id = g.campaign "
            "JOIN runs r ON r.run = g.run_id AND r.cluster = c.cluster "
            "WHERE c.cluster = ? AND c.simulated = ? AND c.kinds = ? AND r.complete",
            (campaign.cluster, campaign.simulated, _kinds_text(campaign.kinds)),
        )
        return grouped(rows)

    def pairs(self, campaign: Campaign) -> dict[str, list[PairResult]]:
        """Return what pairs have measured, by suite; those of a node that was repaired since count no more."""
        rows = self.query(
            "SELECT suite, name, one, other, value, problem FROM campaign_pairs p WHERE campaign = ? AND NOT EXISTS "
            '(SELECT 1 FROM campaign_results r WHERE r.campaign = p.campaign AND r."group" = p."group" AND r."left" '
            'AND r.node IN (p.one, p.other)) ORDER BY "group"',
            (campaign.number,),
        )
        found: dict[str, list[PairResult]] = {}
        for suite, name, one, other, value, problem in rows:
            found.setdefault(suite, []).append(PairResult((one, other), name, value, problem))
        return found

    def mark_left(self, campaign: Campaign, nodes: Iterable[str]) -> None:
        """Note that nodes that failed were repaired, or are being: they are tested again when they are in service."""
        with self._readable_errors(), self._transaction():
            self._db.executemany(
                'UPDATE campaign_results SET "left" = 1 WHERE campaign = ? AND node = ?',
                [(campaign.number, node) for node in nodes],
            )

    def see_nodes(self, campaign: Campaign, nodes: Mapping[str, SlurmNode]) -> None:
        """Store the nodes as Slurm shows them, for `gpucluster campaign`."""
        with self._readable_errors(), self._transaction():
            self._db.executemany(
                "INSERT OR REPLACE INTO campaign_nodes VALUES (?, ?, ?, ?, ?, ?)",
                [(campaign.number, node, it.idle, str(it.share), it.why, it.boot) for node, it in nodes.items()],
            )

    def seen_nodes(self, campaign: Campaign) -> dict[str, SlurmNode]:
        """Return the nodes of a campaign as Slurm showed them last."""
        rows = self.query(
            "SELECT node, idle, share, why, boot FROM campaign_nodes WHERE campaign = ?", (campaign.number,)
        )
        known = {node: SlurmNode(bool(idle), not why, share, why, boot) for node, idle, share, why, boot in rows}
        return {node: known.get(node, SlurmNode(False, True)) for node in campaign.nodes}

    def _write(self, statement: str, values: Sequence[object]) -> None:
        with self._readable_errors(), self._transaction():
            self._db.execute(statement, values)


def _kinds_text(kinds: Sequence[Kind]) -> str:
    return json.dumps([asdict(kind) for kind in kinds])


def _campaign(row: Sequence[object]) -> Campaign:
    number, cluster, name, simulated, nodes, kinds, began, closed = row
    made = tuple(Kind(**{**kind, "suites": tuple(kind["suites"])}) for kind in json.loads(str(kinds)))
    return Campaign(
        int(number),  # type: ignore[call-overload]
        str(cluster),
        str(name),
        bool(simulated),
        tuple(json.loads(str(nodes))),
        made,
        began,  # type: ignore[arg-type]
        closed,  # type: ignore[arg-type]
    )


def _group(row: Sequence[object]) -> RunGroup:
    number, campaign, kind, nodes, waits, *rest = row
    return RunGroup(number, campaign, kind, tuple(json.loads(str(nodes))), bool(waits), *rest)  # type: ignore[arg-type]
