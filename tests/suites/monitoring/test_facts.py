"""What Prometheus and Grafana answer, read to the letter: each field, each default and each reason for no facts."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from pytest_gpucluster.core.errors import ProbeError
from pytest_gpucluster.suites.monitoring import facts as monitoring
from pytest_gpucluster.suites.monitoring.facts import Alert, MonitoringFacts, Service, Target


def body(**data: Any) -> bytes:
    return json.dumps({"status": "success", "data": data}).encode()


ONE = {"labels": {}, "scrapeUrl": "http://n1:9100/x", "health": "up", "lastScrape": "2026-11-21T08:00:00Z"}


def target(**change: Any) -> Target:
    (found,) = monitoring.read_targets(body(activeTargets=[{**ONE, **change}]))
    return found


def test_the_pages_that_are_asked_for() -> None:
    assert monitoring.split_port("a") == ("a", None)
    assert (monitoring.TARGETS, monitoring.ALERTS, monitoring.BUILD, monitoring.RUNTIME) == (
        "/api/v1/targets?state=active", "/api/v1/alerts", "/api/v1/status/buildinfo", "/api/v1/status/runtimeinfo",
    )  # fmt: skip
    assert (monitoring.HEALTHY, monitoring.GRAFANA_HEALTH) == ("/-/healthy", "/api/health")


def test_what_is_not_reported_has_a_default() -> None:
    bare = Target("j", "u", None, "up")
    assert bare == Target("j", "u", None, "up", "", None, (), 60.0)
    assert Alert("a", "firing") == Alert("a", "firing", "", "", ())
    assert Service("s", "u") == Service("s", "u", "", "")
    service = Service("Prometheus", "u")
    assert vars(MonitoringFacts(service, None)) == {
        "prometheus": service, "grafana": None, "targets": {}, "targets_problem": "", "alerts": {},
        "alerts_problem": "", "rules": (), "rules_problem": "", "samples": {}, "samples_problem": "", "samples_now": 0.0,
        "now": 0.0, "began": None,
    }  # fmt: skip
    assert target() == Target("", "http://n1:9100/x", 9100, "up", "", 1795248000.0, ("", "n1"), 60.0)


def test_a_target_that_was_never_scraped_is_neither_up_nor_down() -> None:
    new = Target("j", "u", None, "unknown")
    assert new.unscraped
    assert not replace(new, health="up").unscraped
    assert not replace(new, last_scrape=1.0).unscraped


def test_the_host_of_a_target() -> None:
    assert target(scrapeUrl="/x").hosts == ("", "")
    assert target(scrapeUrl="/x").port is None
    assert target(discoveredLabels={"__address__": "a:1"}).hosts == ("", "a")
    assert target(discoveredLabels={"__address__": "a"}, scrapeUrl="http://b:2/").hosts == ("", "a")
    labels = {
        "Hostname": "e",
        "host": "d",
        "hostname": "c",
        "nodename": "b",
        "node": "a",
        "instance": "f:1",
        "x": "y",
    }
    assert target(labels=labels).hosts == ("a", "b", "c", "d", "e", "f", "n1")
    assert target(labels={"node": "", "job": 7}).hosts == ("", "n1")
    assert target(labels={"job": 7}).job == "7"


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2026-11-21T08:00:00.1234567Z", 1795248000.123456),
        ("2026-11-21T08:00:00.000001Z", 1795248000.000001),
        ("2026-11-21T08:00:00.25-01:30", 1795253400.25),
        ("2026-11-21T08:00:00+00:00", 1795248000.0),
        ("0001-01-01T00:00:00Z", None),
        ("0001-", None),
    ],
)
def test_times(text: str, time: float | None) -> None:
    assert monitoring.read_time(text) == time


@pytest.mark.parametrize(
    "text",
    [
        "x026-11-21T08:00:00Z", "2026-x1-21T08:00:00Z", "2026-1x-21T08:00:00Z", "2026-11-x1T08:00:00Z",
        "2026-11-2xT08:00:00Z", "2026-11-21Tx8:00:00Z", "2026-11-21T0x:00:00Z", "2026-11-21T08:x0:00Z",
        "2026-11-21T08:0x:00Z", "2026-11-21T08:00:x0Z", "2026-11-21T08:00:0xZ", "2026-11-21T08:00:00.Z",
        "2026-11-21T08:00:00.xZ", "2026-11-21T08:00:00+x1:00", "2026-11-21T08:00:00+0x:00",
        "2026-11-21T08:00:00+00:x0", "2026-11-21T08:00:00+00:0x", "2026-11-21T08:00:00", "", "2026-11-21 08:00:00Z",
    ],
)  # fmt: skip
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(ValueError, match=r"^no time: ") as caught:
        monitoring.read_time(text)
    assert str(caught.value) == f"no time: {text!r}"


@pytest.mark.parametrize("told", ["", "0", "xs", "1xs", "x1s", "1s ", "1", "s1", "1.5s", "1234567890123s"])
def test_what_is_no_duration(told: str) -> None:
    with pytest.raises(ValueError, match=r"^no duration: ") as caught:
        monitoring._interval(told)
    assert str(caught.value) == f"no duration: {told!r}"


def test_durations() -> None:
    assert (
        monitoring._interval("1y2w3d4h5m6s7ms")
        == 365 * 86400 + 14 * 86400 + 3 * 86400 + 14400 + 300 + 6 + 0.007
    )
    assert monitoring._interval("123456789012s") == 123456789012.0
    assert monitoring._interval("10m") == 600.0
    assert monitoring._interval(None) == 60.0


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"labels": []}, "AttributeError("),
        ({"labels": None}, "AttributeError("),
        ({"discoveredLabels": None}, "AttributeError("),
        ({"lastScrape": "x"}, "ValueError("),
        ({"scrapeInterval": "x"}, "ValueError("),
    ],
)
def test_a_target_that_is_not_understood(change: dict[str, Any], why: str) -> None:
    with pytest.raises(ProbeError) as caught:
        target(**change)
    assert str(caught.value).startswith(f"targets: a target is not understood ({why}")
    odd: tuple[list[Any], ...] = ([7], [{}])
    for given in odd:
        with pytest.raises(
            ProbeError, match=r"^targets: a target is not understood \((TypeError|KeyError)\("
        ):
            monitoring.read_targets(body(activeTargets=given))


def test_an_alert_that_is_not_understood() -> None:
    wrong: tuple[tuple[Any, str], ...] = (
        (7, "TypeError"), ({}, "KeyError"), ({"labels": {}}, "KeyError"), ({"labels": {"alertname": "a"}}, "KeyError"),
        ({"labels": {"alertname": "a"}, "state": "firing", "annotations": None}, "AttributeError"),
    )  # fmt: skip
    for given, why in wrong:
        with pytest.raises(ProbeError) as caught:
            monitoring.read_alerts(body(alerts=[given]))
        assert str(caught.value).startswith(f"alerts: an alert is not understood ({why}(")
    odd = {"labels": {"alertname": 7}, "state": 8}
    assert monitoring.read_alerts(body(alerts=[odd])) == (Alert("7", "8", "", "", ("",)),)


def test_answers_that_are_none() -> None:
    wrong = (
        (lambda: monitoring.read_targets(body(activeTargets={})), "targets: the answer has no activeTargets"),
        (lambda: monitoring.read_alerts(body(alerts={})), "alerts: the answer has no alerts"),
        (lambda: monitoring.read_version(body()), "buildinfo: the answer has no version"),
        (
            lambda: monitoring.read_began(body()),
            "runtimeinfo: a time is not understood (KeyError('startTime'))",
        ),
        (
            lambda: monitoring.read_began(body(startTime="0001-01-01T00:00:00Z")),
            "runtimeinfo: a time is not understood (KeyError('lastConfigTime'))",
        ),
        (
            lambda: monitoring.read_began(body(startTime="x")),
            """runtimeinfo: a time is not understood (ValueError("no time: 'x'"))""",
        ),
        (lambda: monitoring.read_grafana(b"[]"), "Grafana's health: the answer has no state of the database"),
        (lambda: monitoring.read_grafana(b"{}"), "Grafana's health: the answer has no state of the database"),
        (lambda: monitoring.read_grafana(b"x"), "Grafana's health: the answer is not JSON"),
        (
            lambda: monitoring.read_version(b'{"status": "success", "data": []}'),
            "buildinfo: Prometheus answers in another than its documented form",
        ),
        (
            lambda: monitoring.read_version(b'{"status": "x", "data": {"version": "3"}}'),
            "buildinfo: Prometheus answers in another than its documented form",
        ),
        (
            lambda: monitoring.read_began(b'{"status": "error", "error": "busy"}'),
            "runtimeinfo: Prometheus answers busy",
        ),
    )
    for read, words in wrong:
        with pytest.raises(ProbeError) as caught:
            read()
        assert str(caught.value) == words


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("a:1", "a", 1), ("a", "a", None), ("a:", "a:", None), (":1", "", 1), ("[::1]:9", "::1", 9),
        ("[::1]", "::1", None),
        ("a:b:1", "a:b", 1), ("", "", None), ("1", "1", None),
    ],
)  # fmt: skip
def test_the_port_of_an_address(address: str, host: str, port: int | None) -> None:
    assert monitoring.split_port(address) == (host, port)


@pytest.mark.parametrize(
    ("hosts", "node"),
    [
        (("x", "b.site.org", "a"), "n2"), (("a",), "n1"), (("10.0.0.1",), ""), (("a.b.c",), "n1"), ((), ""),
        (("",), ""),
        (("::1", "b"), "n2"), (("b.x",), "n3"),
    ],
)  # fmt: skip
def test_the_node_that_hosts_name(hosts: tuple[str, ...], node: str) -> None:
    assert monitoring.owner(hosts, {"a": "n1", "b": "n2", "10": "n9", "b.x": "n3"}) == node
