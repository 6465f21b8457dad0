"""What Prometheus and Grafana answer, read to the letter: each field, each default and each reason for no facts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucluster.core.errors import ProbeError
from pytest_gpucluster.suites.monitoring import facts as monitoring
from pytest_gpucluster.suites.monitoring.facts import Alert, Target

if TYPE_CHECKING:
    from collections.abc import Callable


def body(**data: Any) -> bytes:
    return json.dumps({"status": "success", "data": data}).encode()


ONE = {"labels": {}, "scrapeUrl": "http://n1:9100/x", "health": "up", "lastScrape": "2026-11-21T08:00:00Z"}


def target(**change: Any) -> Target:
    (found,) = monitoring.read_targets(body(activeTargets=[{**ONE, **change}]))
    return found


NAMES = ("node", "nodename", "hostname", "host", "Hostname", "instance", "x")
LABELS = dict(reversed([*zip(NAMES, ("a", "b", "c", "d", "e", "f:1", "y"), strict=True)]))


@pytest.mark.parametrize(
    ("change", "hosts"),
    [
        ({"discoveredLabels": {"__address__": "a:1"}}, ("", "a")),
        ({"discoveredLabels": {"__address__": "a"}, "scrapeUrl": "http://b:2/"}, ("", "a")),
        ({"labels": LABELS}, ("a", "b", "c", "d", "e", "f", "n1")),
    ],
)
def test_the_host_of_a_target(change: dict[str, Any], hosts: tuple[str, ...]) -> None:
    assert target(**change).hosts == hosts
    assert target(scrapeUrl="/x").port is None
    assert target(labels={"job": 7}).job == "7"


@pytest.mark.parametrize(
    ("told", "seconds"),
    [("1y2w3d4h5m6s7ms", (365 + 14 + 3) * 86400 + 14400 + 300 + 6 + 0.007), ("500ms", 0.5), (None, 60.0)],
)
def test_durations_of_prometheus(told: str | None, seconds: float) -> None:
    assert target(scrapeInterval=told).interval == seconds


@pytest.mark.parametrize(
    ("annotations", "summary"),
    [({"summary": "a\nb"}, "a b"), ({"description": "d"}, "d"), ({"summary": "", "description": "e"}, "e"), ({}, "")],
)
def test_an_alert_is_read_whole(annotations: dict[str, str], summary: str) -> None:
    labels = {"alertname": "Hot", "severity": "critical", "instance": "gpu01:9100"}
    told = {"labels": labels, "state": "firing", "annotations": annotations}
    found, past = monitoring.read_alerts(body(alerts=[told, {**told, "keepFiringSince": ONE["lastScrape"]}]))
    assert found == Alert("Hot", "firing", "critical", summary, ("gpu01",))
    assert (found.past, past.past) == (False, True)


ZERO, LATER = "0001-01-01T00:00:00Z", "2026-11-21T09:00:10+01:00"


def test_the_later_of_start_and_configuration_is_when_prometheus_began() -> None:
    start = str(ONE["lastScrape"])
    for config, began in ((LATER, 1795248010.0), (ZERO, 1795248000.0)):
        assert monitoring.read_began(body(startTime=start, lastConfigTime=config)) == began
    assert monitoring.read_began(body(startTime=ZERO, lastConfigTime=ZERO)) == 0.0


TARGETS, ALERTS = monitoring.read_targets, monitoring.read_alerts


GRAFANA, BEGAN = monitoring.read_grafana, monitoring.read_began


@pytest.mark.parametrize(
    ("read", "text", "why"),
    [
        (TARGETS, b"<html>", "targets: the answer is not JSON"),
        (TARGETS, b'{"status": "error", "error": "busy"}', "targets: Prometheus answers busy"),
        (TARGETS, body(activeTargets={}), "targets: the answer has no activeTargets"),
        (TARGETS, body(activeTargets=[{**ONE, "lastScrape": "x"}]), "targets: a target is not understood"),
        (ALERTS, body(alerts=[7]), "alerts: an alert is not understood"),
        (monitoring.read_version, body(version=3), "buildinfo: the answer has no version"),
        (BEGAN, body(startTime="x"), "runtimeinfo: a time is not understood"),
    ],
)
def test_answers_that_are_no_facts(read: Callable[[bytes], object], text: bytes, why: str) -> None:
    with pytest.raises(ProbeError, match=why):
        read(text)


@pytest.mark.parametrize(
    ("hosts", "node"), [("x b.org a", "n2"), ("10.0.0.1", ""), ("a.b.c", "n1"), ("::1 b", "n2"), ("b.x", "n3")]
)
def test_the_node_that_hosts_name(hosts: str, node: str) -> None:
    assert monitoring.owner(tuple(hosts.split()), {"a": "n1", "b": "n2", "10": "n9", "b.x": "n3"}) == node
