"""What a gate compares its node with: answers of nodes that a run has accepted, in one small file that the run writes.

JSON: {version, cluster, run, written, good: hostlist, nodes: {name: entry of Slurm}, answers: {name: {command: [exit status, stdout, stderr,
sent, received]}}}. Texts hold the bytes of an answer as Latin-1.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.cluster.slurm.inventory import NodeInfo
from pytest_gpucluster.core import given, hostlist, safe_json
from pytest_gpucluster.core.errors import ConfigError
from pytest_gpucluster.core.fact import in_order
from pytest_gpucluster.core.registry import suites
from pytest_gpucluster.gate import files
from pytest_gpucluster.gate.shared_answers import decoded, encoded
from pytest_gpucluster.run.facts import facts_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path

    from pytest_gpucluster.cluster.transport.base import Transport
    from pytest_gpucluster.core.probe import Answer, Probe
    from pytest_gpucluster.run.session import ClusterSession

VERSION = 1
# of nodes that are compared with one another: two thirds of them and the own node are a majority
MOST_NODES = 5
MAX_ANSWER = 1 << 16  # bytes; a longer answer is left out
# what does not change while a node works
STATIC = ("gres", "cpus", "memory", "features", "partitions", "version", "cpus_effective", "hostname", "arch", "system")


@dataclass(frozen=True)
class Baseline:
    """Answers of accepted nodes, {node: {command: answer}}, and Slurm's entries of all nodes. `written`: seconds since the epoch.

    `good`: the nodes that the run found good.
    """

    cluster: str = ""
    run: str = ""
    written: float = 0.0
    nodes: Mapping[str, NodeInfo] = field(default_factory=dict)
    answers: Mapping[str, Mapping[str, Answer]] = field(default_factory=dict)
    good: Collection[str] = ()


def encode(baseline: Baseline) -> str:
    """Return the text of the file; long answers are left out, and those of commands that did not end."""
    answers = {node: encoded(known, MAX_ANSWER) for node, known in baseline.answers.items()}
    plain = {name: {key: getattr(it, key) for key in STATIC} for name, it in baseline.nodes.items()}
    nodes = {
        name: {key: sorted(it) if isinstance(it, frozenset) else it for key, it in entry.items() if it}
        for name, entry in plain.items()
    }
    head = {"version": VERSION, "cluster": baseline.cluster, "run": baseline.run, "written": baseline.written}
    good = hostlist.fold(baseline.good)
    return json.dumps({**head, "good": good, "nodes": nodes, "answers": answers}, separators=(",", ":"))


def read(path: Path, transport: Transport, *, own: bool = False) -> Baseline:
    """Return the baseline in a file; ConfigError for one that is not used (see files.py). A missing file is an empty one."""
    text = files.read(path, transport, own=own)
    try:
        return Baseline() if text is None else parse(text)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def parse(text: str) -> Baseline:
    """Return the baseline of a text; ConfigError for another text."""
    try:
        return _decoded(safe_json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise ConfigError(f"is no baseline of a gate of this version: {error}") from error


def _decoded(data: Mapping[str, Any]) -> Baseline:
    if data["version"] != VERSION:
        raise ValueError(f"version {data['version']}")
    known = {it.name for it in fields(NodeInfo)}
    nodes = {}
    for name, plain in data["nodes"].items():
        entry = {key: value for key, value in plain.items() if key in known}
        entry["features"] = frozenset(entry.get("features", ()))
        entry["partitions"] = tuple(entry.get("partitions", ()))
        nodes[str(name)] = NodeInfo(str(name), "UNKNOWN", **entry)
    answers = {
        str(node): {str(command): decoded(str(node), plain) for command, plain in of_node.items()}
        for node, of_node in data["answers"].items()
    }
    good = frozenset(hostlist.expand(str(data.get("good", ""))))
    return Baseline(str(data["cluster"]), str(data["run"]), float(data["written"]), nodes, answers, good)


def of_session(session: ClusterSession, accepted: Collection[str], run: str) -> Baseline:
    """Return the baseline of a run: the answers of some accepted nodes to the commands whose facts are compared."""
    chosen: dict[str, list[str]] = {}
    for node in accepted:
        alike = chosen.setdefault(session.nodes[node].twins.nodes, [])
        if len(alike) < MOST_NODES:
            alike.append(node)
    nodes = tuple(node for alike in chosen.values() for node in alike)
    probes = {it.command: it for it in _compared(session, nodes)}.values()
    answers = {
        node: {
            session.facts.rooted(probe, probe.command): answer
            for probe in probes
            if (answer := session.facts.sent_answer(node, probe)) is not None
        }
        for node in nodes
    }
    return Baseline(session.cluster.name, run, time.time(), dict(session.inventory), answers, accepted)


def _compared(session: ClusterSession, nodes: tuple[str, ...]) -> Iterator[Probe[Any]]:
    """Yield the probes of the suites that are imported, whose facts are those of several nodes."""
    for suite in suites():
        module = sys.modules.get(f"{suite.package}.test_{suite.name}")
        for fact in in_order(facts_of(module).values()) if module is not None else ():
            if fact.probes and given.fleet_facts in fact.needs:
                yield from fact.probes(session.cluster, nodes)
