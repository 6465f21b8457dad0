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
        ({"scrapeUrl": "/x"}, ("", "")),
        ({"discoveredLabels": {"__address__": "a:1"}}, ("", "a")),
        ({"discoveredLabels": {"__address__": "a"}, "scrapeUrl": "http://b:2/"}, ("", "a")),
        ({"labels": LABELS}, ("a", "b", "c", "d", "e", "f", "n1")),
        ({"labels": {"node": "", "job": 7}}, ("", "n1")),
    ],
)
def test_the_host_of_a_target(change: dict[str, Any], hosts: tuple[str, ...]) -> None:
    assert target(**change).hosts == hosts
    assert target(scrapeUrl="/x").port is None
    assert target(labels={"job": 7}).job == "7"


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2026-11-21T08:00:00.123456789Z", 1795248000.123456),
        ("2026-11-21T08:00:00.25-01:30", 1795253400.25),
        ("2026-11-21T08:00:00+00:00", 1795248000.0),
        ("0001-01-01T00:00:00Z", None),
    ],
)
def test_times_of_go(text: str, time: float | None) -> None:
    assert monitoring.read_time(text) == time


@pytest.mark.parametrize(
    "text",
    ["x026-11-21T08:00:00Z", "2026-11-21T08:00:00.Z", "2026-11-21T08:00:00+00:0x", "2026-11-21T08:00:00", ""],
)
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(ValueError, match=r"^no time: "):
        monitoring.read_time(text)


@pytest.mark.parametrize(
    ("told", "seconds"),
    [("1y2w3d4h5m6s7ms", (365 + 14 + 3) * 86400 + 14400 + 300 + 6 + 0.007), ("500ms", 0.5), (None, 60.0)],
)
def test_durations_of_prometheus(told: str | None, seconds: float) -> None:
    assert target(scrapeInterval=told).interval == seconds


@pytest.mark.parametrize("told", ["", "xs", "1xs", "1s ", "1", "1.5s", "1234567890123s"])
def test_what_is_no_duration(told: str) -> None:
    with pytest.raises(ProbeError, match="no duration"):
        target(scrapeInterval=told)


def test_a_target_is_read_whole() -> None:
    labels = {"job": "node", "node": "gpu01", "host": "h", "instance": "i:1"}
    address = {"discoveredLabels": {"__address__": "10.0.0.1:9100"}}
    found = target(labels=labels, **address, lastError=" a\n b ", scrapeUrl="http://gpu01:9200/metrics")
    hosts = ("gpu01", "h", "i", "10.0.0.1")
    scrape = ("node", "i:1")
    expected = Target("node", found.url, 9100, "up", "a b", 1795248000.0, hosts, 60.0, scrape)
    assert found == expected


@pytest.mark.parametrize(
    ("annotations", "summary"),
    [
        ({"summary": "a\nb"}, "a b"),
        ({"description": "d"}, "d"),
        ({"summary": "", "description": "e"}, "e"),
        ({}, ""),
    ],
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


def test_versions_are_read() -> None:
    assert monitoring.read_version(body(version="3.1.0")) == "3.1.0"
    assert monitoring.read_grafana(b'{"database": "ok", "version": "11.2.0"}') == ("11.2.0", "ok")
    assert monitoring.read_grafana(b'{"database": "failing"}') == ("", "failing")


TARGETS, ALERTS = monitoring.read_targets, monitoring.read_alerts


NO_NOTES = {"labels": {"alertname": "a"}, "state": "x", "annotations": None}
GRAFANA, BEGAN = monitoring.read_grafana, monitoring.read_began


@pytest.mark.parametrize(
    ("read", "text", "why"),
    [
        (TARGETS, b"<html>", "targets: the answer is not JSON"),
        (TARGETS, b"[]", "targets: Prometheus answers in another"),
        (TARGETS, b'{"status": "error", "error": "busy"}', "targets: Prometheus answers busy"),
        (TARGETS, b'{"status": "x", "data": {"activeTargets": []}}', "targets: Prometheus answers"),
        (TARGETS, body(activeTargets={}), "targets: the answer has no activeTargets"),
        (TARGETS, body(activeTargets=[7]), "targets: a target is not understood"),
        (TARGETS, body(activeTargets=[{}]), "targets: a target is not understood"),
        (TARGETS, body(activeTargets=[{**ONE, "labels": None}]), "targets: a target is not understood"),
        (TARGETS, body(activeTargets=[{**ONE, "lastScrape": "x"}]), "targets: a target is not understood"),
        (ALERTS, body(alerts={}), "alerts: the answer has no alerts"),
        (ALERTS, body(alerts=[7]), "alerts: an alert is not understood"),
        (ALERTS, body(alerts=[{"labels": {"alertname": "a"}}]), "alerts: an alert is not understood"),
        (ALERTS, body(alerts=[NO_NOTES]), "alerts: an alert is not understood"),
        (monitoring.read_version, body(version=3), "buildinfo: the answer has no version"),
        (BEGAN, body(startTime=ZERO), "runtimeinfo: a time is not understood"),
        (BEGAN, body(startTime="x"), "runtimeinfo: a time is not understood"),
        (GRAFANA, b"[]", "Grafana's health: the answer has no state"),
        (GRAFANA, b"{}", "Grafana's health: the answer has no state"),
    ],
)
def test_answers_that_are_no_facts(read: Callable[[bytes], object], text: bytes, why: str) -> None:
    with pytest.raises(ProbeError, match=why):
        read(text)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("a:1", ("a", 1)),
        ("a", ("a", None)),
        ("a:", ("a:", None)),
        ("[::]:9", ("::", 9)),
        ("[::]", ("::", None)),
    ],
)
def test_the_port_of_an_address(address: str, expected: tuple[str, int | None]) -> None:
    assert monitoring.split_port(address) == expected


@pytest.mark.parametrize(
    ("hosts", "node"),
    [
        ("x b.org a", "n2"),
        ("10.0.0.1", ""),
        ("a.b.c", "n1"),
        ("", ""),
        ("a1", ""),
        ("::1 b", "n2"),
        ("b.x", "n3"),
    ],
)
def test_the_node_that_hosts_name(hosts: str, node: str) -> None:
    assert monitoring.owner(tuple(hosts.split()), {"a": "n1", "b": "n2", "10": "n9", "b.x": "n3"}) == node
