"""`--campaign`, `--untested-for` and `--budget`: pytest starts runs on a few nodes at a time instead of one run on all idle nodes, or leaves nodes out."""

from __future__ import annotations

import argparse
import math
import re
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucluster.campaign import state_file
from pytest_gpucluster.campaign.campaign import Loop, Rules, oldest_of
from pytest_gpucluster.campaign.cost import cost_of_campaign
from pytest_gpucluster.campaign.model import Kind
from pytest_gpucluster.campaign.store import CampaignStore
from pytest_gpucluster.campaign.summary import summarize
from pytest_gpucluster.campaign.urgency import by_urgency, shown
from pytest_gpucluster.campaign.window import Window
from pytest_gpucluster.cluster import signals
from pytest_gpucluster.cluster.plan import Selection
from pytest_gpucluster.cluster.slurm.client import make_slurm
from pytest_gpucluster.core import hostlist
from pytest_gpucluster.core.errors import ConfigError, GpuClusterError
from pytest_gpucluster.core.registry import suites
from pytest_gpucluster.core.secure_tempfile import group_id
from pytest_gpucluster.core.units import format_duration, parse_node_hours, parse_option_time
from pytest_gpucluster.plugin.collection import choose, chosen, names_of
from pytest_gpucluster.plugin.open_session import (
    cost_of,
    find_cluster,
    first_contact,
    is_free,
    reserved_nodes,
    with_options,
)
from pytest_gpucluster.plugin.option_table import add_campaign
from pytest_gpucluster.plugin.options import refuse_words
from pytest_gpucluster.plugin.run_outputs import history_path
from pytest_gpucluster.report.describe import labelled
from pytest_gpucluster.report.verdict import BUDGET
from pytest_gpucluster.run.item_record import clean, one_line
from pytest_gpucluster.run.session import shows_simulated

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpucluster.campaign.model import Campaign
    from pytest_gpucluster.cluster.slurm.client import Slurm
    from pytest_gpucluster.config.models import Cluster

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,63}")


def main(config: pytest.Config) -> int | None:
    """Run the campaign and return pytest's exit status; None: an ordinary run follows, without the nodes that are not due."""
    refuse_words(config.option)
    try:
        return _campaign(config) if config.option.campaign is not None else _leave_out_nodes(config)
    except GpuClusterError as error:
        raise pytest.UsageError(clean(one_line(error))) from error


def _campaign(config: pytest.Config) -> int:
    option = config.option
    if not _NAME.fullmatch(option.campaign):
        raise ConfigError(f"--campaign={option.campaign}: invalid name (allowed: letters, digits and _.+-)")
    given = [str(word) for word in config.invocation_params.args]
    arguments = without_campaign(given)
    if arguments == given:
        raise ConfigError("--campaign: must stand on the command line, not in addopts or PYTEST_ADDOPTS")
    cluster, path = _open_cluster(config)
    slurm = make_slurm(cluster)
    if slurm is None:
        raise ConfigError(f"--campaign: cluster {cluster.name} has no scheduler: {cluster.why_no_slurm}")
    if getattr(option, "xmlpath", None):
        raise ConfigError("--junitxml: a campaign has many runs, each with a junit.xml in its folder; leave it out")
    kinds = kinds_of(config, cluster)
    rules = make_rules(option, kinds, (*arguments, f"--history={path.absolute()}"))
    first_contact(cluster, slurm)
    reserved = reserved_nodes(cluster, slurm)
    signals.catch()
    with closing(CampaignStore(path, create=True, group=group_id(cluster.reports.group), wait=signals.pause)) as store:
        simulated = _is_simulated(cluster, slurm)
        campaign = open_campaign(store, cluster, option, kinds, tuple(reserved or ()), simulated=simulated)
        if campaign is None:
            return pytest.ExitCode.OK
        of = labelled(cluster.name, simulated=simulated)
        show(cost_of_campaign(store, campaign, rules.limit, cluster.slurm.time))
        show(
            f"campaign {campaign.name} of {of}: {len(campaign.nodes)} nodes, at most {rules.limit} at once; state in {path}"
        )
        loop = Loop(campaign, cluster, slurm, store, rules, show, tuple(reserved or ()))
        try:
            loop.run()
        except KeyboardInterrupt:
            show("the campaign was stopped; the same command continues it")
            return pytest.ExitCode.INTERRUPTED
        summary = summarize(store, campaign, now=time.time())
    for line in summary.lines():
        write(line)
    if loop.folder.is_dir():  # a group of this campaign has run
        written = state_file.write(summary, loop.folder, group=group_id(cluster.reports.group))
        write(f"  state: {written}; gpucluster record sign {loop.folder} signs the campaign")
    write(f"  requests to the controller for the state of the nodes: {slurm.transport.started['scontrol']}")
    return pytest.ExitCode.OK if summary.accepted else pytest.ExitCode.TESTS_FAILED


def open_campaign(
    store: CampaignStore,
    cluster: Cluster,
    option: Any,
    kinds: Sequence[Kind],
    reserved: Sequence[str],
    *,
    simulated: bool,
) -> Campaign | None:
    """Begin or continue the campaign of --campaign; None if no node is due."""
    known = store.campaign(cluster.name, option.campaign)
    nodes = selected_nodes(cluster, option, reserved)
    newest = 0.0
    if option.untested_for is not None:
        newest = time.time() - _duration("--untested-for", option.untested_for)
        if known is not None and known.closed is None:
            nodes = known.nodes
        else:
            names = {suite for kind in kinds for suite in kind.suites}
            nodes = due_nodes(store, cluster.name, names, nodes, newest, simulated=simulated)
    if not nodes:
        show(_nothing_due(option.untested_for))
        return None
    return store.open_campaign(cluster.name, option.campaign, nodes, kinds, simulated=simulated, newest=newest)


def selected_nodes(cluster: Cluster, option: Any, reserved: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the nodes that --nodes, --exclude-nodes and the reservation select, in the order of the cluster file."""
    selection = Selection.parse(option.nodes, option.exclude_nodes)
    expected = [node for group in cluster.groups for node in group.names if not cluster.unreachable(node)]
    if unknown := set(selection.nodes or ()) - set(expected):
        raise ConfigError(
            f"--nodes: {hostlist.fold(unknown)} not in cluster {cluster.name}, which has {hostlist.fold(expected)}"
        )
    named = set(selection.nodes if selection.nodes is not None else reserved or expected)
    found = tuple(node for node in expected if node in named and node not in selection.exclude)
    if not found:
        raise ConfigError(f"--campaign: no node of cluster {cluster.name} is selected")
    return found


def due_nodes(
    store: CampaignStore, cluster: str, names: set[str], nodes: Sequence[str], newest: float, *, simulated: bool
) -> tuple[str, ...]:
    """Return the nodes of which a suite has no good verdict since `newest`, oldest first."""
    ages = oldest_of(store, cluster, names, nodes, simulated=simulated)
    return tuple(sorted((node for node in nodes if ages[node] < newest), key=lambda node: ages[node]))


def _is_simulated(cluster: Cluster, slurm: Slurm | None) -> bool:
    """Return whether the verdicts of the cluster's runs are of simulated hardware, as a run finds it."""
    inventory = slurm.nodes() if slurm is not None else {}
    return shows_simulated(cluster, inventory, (name for group in cluster.groups for name in group.names))


def _leave_out_nodes(config: pytest.Config) -> int | None:
    status = _leave_out_tested(config) if config.option.untested_for is not None else None
    if status is None and config.option.budget is not None:
        _keep_to_budget(config)
    return status


def _leave_out_tested(config: pytest.Config) -> int | None:
    """Exclude the nodes that are not due from an ordinary run."""
    option = config.option
    cluster, path = _open_cluster(config)
    if not path.exists():
        return None
    names = {suite for kind in kinds_of(config, cluster) for suite in kind.suites}
    nodes = selected_nodes(cluster, option)
    newest = time.time() - _duration("--untested-for", option.untested_for)
    with closing(CampaignStore(path)) as store:
        simulated = _is_simulated(cluster, make_slurm(cluster))
        due = due_nodes(store, cluster.name, names, nodes, newest, simulated=simulated)
    if not due:
        show(_nothing_due(option.untested_for))
        return pytest.ExitCode.OK
    _leave_out(option, [node for node in nodes if node not in due])
    return None


def _leave_out(option: Any, nodes: Sequence[str]) -> None:
    if nodes:
        option.exclude_nodes = ",".join(filter(None, (option.exclude_nodes, hostlist.fold(nodes))))


def _keep_to_budget(config: pytest.Config) -> None:
    """Exclude the nodes that --budget does not pay for from an ordinary run; without any of them the option says nothing."""
    option = config.option
    budget = _node_seconds(option.budget)
    cluster, path = _open_cluster(config)
    slurm = make_slurm(cluster)
    inventory = first_contact(cluster, slurm) if slurm is not None else {}
    reserved = reserved_nodes(cluster, slurm) if slurm is not None else None
    nodes = selected_nodes(cluster, option, tuple(reserved or ()))
    free = [node for node in nodes if is_free(node, cluster, inventory, reserved, wait=option.nodes is not None)]
    if not free:
        raise ConfigError(f"{BUDGET}: Slurm can give none of {hostlist.fold(nodes)} to this run now")
    cost = cost_of(config, cluster, slurm, inventory, len(free), path)
    each = cost.most if cost.seconds is None else cost.seconds
    number = math.floor(budget / each)
    if not number:
        raise ConfigError(f"{BUDGET}={option.budget}: does not pay for one node ({cost.text})")
    if number >= len(free):
        show(f"{BUDGET} {option.budget}: pays for all {len(free)} nodes that Slurm can give")
        option.budget = None
        return
    with closing(CampaignStore(path, create=True, group=group_id(cluster.reports.group))) as store:
        kind = cluster.name, shows_simulated(cluster, inventory, nodes)
        boots = {node: inventory[node].booted if node in inventory else 0.0 for node in free}
        ordered = by_urgency(store, kind, names_of(config, slurm, cluster), boots, time.time())
    tested = {it.node for it in ordered[:number]}
    out = [node for node in nodes if node not in tested]
    show(f"{BUDGET} {option.budget}: tests {hostlist.fold(tested)}, most urgent first: {shown(ordered[:number])}")
    show(f"{BUDGET} {option.budget}: left out: {hostlist.fold(out)}")
    if cost.seconds is None:
        show(f"{BUDGET} {option.budget}: counts {format_duration(each)} for each node; {cost.text}")
    _leave_out(option, out)


def _node_seconds(text: str) -> float:
    try:
        return parse_node_hours(text)
    except ValueError as error:
        raise ConfigError(f"{BUDGET}: {error}") from error


def _nothing_due(text: str) -> str:
    return f"nothing to do: every selected node has a good verdict of each suite that is younger than {text}"


def _open_cluster(config: pytest.Config) -> tuple[Cluster, Path]:
    """Return the cluster, and the file of its history, which holds the state; and set what a run collects."""
    option = config.option
    notes: list[str] = []
    cluster = with_options(find_cluster(option, notes), option)
    for note in notes:
        show(note)
    config.args = choose(config, cluster.suites)
    path = history_path(option.history, cluster.history)
    if path is None:
        given = {"--campaign": option.campaign, "--untested-for": option.untested_for}
        name = next((name for name, value in given.items() if value is not None), BUDGET)
        raise ConfigError(f"{name}: needs a history: --history=FILE, or `history` in the cluster file")
    return cluster, path


def kinds_of(config: pytest.Config, cluster: Cluster) -> tuple[Kind, ...]:
    """Return the kinds of groups: suites that test a node alone, and those that need others, by their number of partners."""
    expression = (config.option.markexpr or "").strip()
    selected = chosen(config, cluster)
    of_pairs = sorted({suite.partners for suite in selected if suite.partners})
    with_partners = [suite.name for suite in suites() if suite.partners]
    found = []
    alone = tuple(suite.name for suite in selected if not suite.partners)
    if alone or not of_pairs:  # tests of the site are of no suite
        without = f"not ({' or '.join(with_partners)})"
        found.append(Kind("alone", f"({expression}) and {without}" if expression else without, alone))
    for number in of_pairs:
        names = tuple(suite.name for suite in selected if suite.partners == number)
        marks = " or ".join(names)
        both = f"({expression}) and ({marks})" if expression else marks
        found.append(Kind("-".join(names), both, names, size=2, partners=number))
    if (size := cluster.campaign.group) is not None:
        if not of_pairs:
            raise ConfigError(f"campaign.group {size}: no suite of this run tests nodes together")
        pairs = found[-1]  # the suites whose nodes have most partners
        name = f"{pairs.name} by {size}"
        found.append(Kind(name, pairs.expression, pairs.suites, size=size, partners=size - 1, larger=True))
    return tuple(found)


def make_rules(option: Any, kinds: Sequence[Kind], arguments: tuple[str, ...]) -> Rules:
    """Return the rules of the options; ConfigError for a value that is none."""
    limit, largest = option.max_nodes_at_once, max(kind.size for kind in kinds)
    if limit < largest:
        raise ConfigError(f"--max-nodes-at-once={limit}: must be at least {largest}, the nodes of one group")
    try:
        window = Window.of(option.campaign_window) if option.campaign_window is not None else None
    except ValueError as error:
        raise ConfigError(f"--campaign-window: {error}") from error
    ends = None
    if option.campaign_time is not None:
        ends = time.monotonic() + _duration("--campaign-time", option.campaign_time)
    return Rules(limit, ends, window, Path(option.report_dir), arguments)


def without_campaign(arguments: Sequence[str]) -> list[str]:
    """Return a command line without the options of a campaign."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    add_campaign(parser.add_argument)
    return parser.parse_known_args(list(arguments))[1]


def _duration(name: str, text: str) -> float:
    try:
        return parse_option_time(text)
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from error


def show(line: str) -> None:
    """Print a line with the time, at once."""
    write(f"{time.strftime('%H:%M:%S')} {line}")


def write(line: str) -> None:
    """Print a line at once: there is no terminal reporter before a run."""
    sys.stdout.write(f"{clean(line)}\n")
    sys.stdout.flush()
