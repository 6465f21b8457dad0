"""Facts from the HTTP interfaces of Prometheus and Grafana. Pure.

Formats: https://prometheus.io/docs/prometheus/latest/querying/api/ (targets, alerts, buildinfo), which 2.x and 3.x
share, and https://grafana.com/docs/grafana/latest/developers/http_api/other/#health-api.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import re
import urllib.parse
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from pytest_gpucluster.core import safe_json as jsontext
from pytest_gpucluster.core.errors import NotAvailable, ProbeError
from pytest_gpucluster.core.part import Part

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytest_gpucluster.suites.monitoring.gpu_facts import Rule, Sample

T = TypeVar("T")

TARGETS = "/api/v1/targets?state=active"
ALERTS = "/api/v1/alerts"
BUILD = "/api/v1/status/buildinfo"
RUNTIME = "/api/v1/status/runtimeinfo"
HEALTHY = "/-/healthy"
GRAFANA_HEALTH = "/api/health"
# seconds; default of global.scrape_interval; before 2.28 Prometheus does not report it
SCRAPE_INTERVAL = 60.0
NEVER = "0001-"  # Go's zero time
NODE_LABELS = ("node", "nodename", "hostname", "host", "Hostname")  # Hostname: dcgm-exporter's own
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d+))?(Z|[+-]\d\d:\d\d)")  # RFC 3339
_SECONDS = {"y": 365 * 86400.0, "w": 7 * 86400.0, "d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_PART = re.compile(r"(\d{1,12})(ms|[ywdhms])")
_DURATION = re.compile(r"(?:\d{1,12}(?:ms|[ywdhms]))+")


@dataclass(frozen=True)
class Target:
    """One target of Prometheus. `last_scrape` is Unix time, None if it was never scraped."""

    job: str
    url: str
    port: int | None
    health: str
    last_error: str = ""
    last_scrape: float | None = None
    hosts: tuple[str, ...] = ()
    """Possible names of its node, the most reliable first: labels, instance, address."""
    interval: float = SCRAPE_INTERVAL
    """Seconds between scrapes; the first begins within one interval and ends within two."""
    scrape: tuple[str, str] = ("", "")
    """Its labels job and instance, which its series have too."""

    @property
    def part(self) -> Part:
        """The part that a finding names; the address of the exporter differs between nodes."""
        return Part("service", name=f"job {self.job}", address=self.url)

    @property
    def unscraped(self) -> bool:
        """Whether Prometheus has not scraped it yet: it is neither up nor down."""
        return self.health == "unknown" and self.last_scrape is None


@dataclass(frozen=True)
class Alert:
    """One alert: `state` is pending or firing. `past`: the condition has ended, and keep_firing_for holds the alert."""

    name: str
    state: str
    severity: str = ""
    summary: str = ""
    hosts: tuple[str, ...] = ()
    past: bool = False


@dataclass(frozen=True)
class Service:
    """Prometheus or Grafana. `problem`: why it does not work, '' if it does."""

    name: str
    url: str
    version: str = ""
    problem: str = ""


@dataclass(frozen=True)
class MonitoringFacts:
    """Facts of the monitoring. A `..._problem` is the reason if there are no facts of that kind.

    `targets`, `alerts` and `samples` are by node; '' has those of no node of the cluster file. `now` and `samples_now` are
    the clock of Prometheus.
    """

    prometheus: Service
    grafana: Service | None
    targets: Mapping[str, tuple[Target, ...]] = field(default_factory=dict)
    targets_problem: str = ""
    alerts: Mapping[str, tuple[Alert, ...]] = field(default_factory=dict)
    alerts_problem: str = ""
    rules: tuple[Rule, ...] = ()
    rules_problem: str = ""
    samples: Mapping[str, tuple[Sample, ...]] = field(default_factory=dict)
    samples_problem: str = ""
    samples_now: float = 0.0
    now: float = 0.0
    began: float | None = None
    """When Prometheus started or last read its configuration; None if unknown."""

    @property
    def known_targets(self) -> Mapping[str, tuple[Target, ...]]:
        """The targets by node; NotAvailable without them."""
        if self.targets_problem:
            raise NotAvailable(self.targets_problem)
        return self.targets

    def awaits(self, target: Target) -> bool:
        """Return whether a target was not scraped yet because Prometheus has just started."""
        return target.unscraped and self.began is not None and self.now < self.began + 2 * target.interval


def read_targets(body: bytes) -> tuple[Target, ...]:
    """Return the active targets; ProbeError if the answer has another form."""
    return entries_of(body, "targets", "activeTargets", "a target", _target)


def _target(one: Mapping[str, Any]) -> Target:
    labels = one["labels"]
    address = str(one.get("discoveredLabels", {}).get("__address__", ""))
    url = str(one["scrapeUrl"])
    host, port = split_port(address)
    if port is None:
        parts = urllib.parse.urlsplit(url)
        host, port = host or parts.hostname or "", parts.port
    return Target(
        job=str(labels.get("job", "")),
        url=url,
        port=port,
        health=str(one["health"]),
        last_error=" ".join(str(one.get("lastError", "")).split()),
        last_scrape=read_time(str(one["lastScrape"])),
        hosts=(*hosts_of(labels), host),
        scrape=(str(labels.get("job", "")), str(labels.get("instance", ""))),
        interval=_interval(one.get("scrapeInterval")),
    )


def _interval(value: object) -> float:
    """Read a duration of Prometheus like 1m30s or 500ms; None is the default interval."""
    if value is None:
        return SCRAPE_INTERVAL
    if not _DURATION.fullmatch(str(value)):
        raise ValueError(f"no duration: {value!r}")
    return sum(int(number) * _SECONDS[unit] for number, unit in _PART.findall(str(value)))


def read_began(body: bytes) -> float:
    """Return when Prometheus started or last read its configuration, whichever was later, as Unix time."""
    data = data_of(body, "runtimeinfo")
    try:
        times = [read_time(str(data[key])) for key in ("startTime", "lastConfigTime")]
    except (KeyError, ValueError) as error:
        raise ProbeError(f"runtimeinfo: a time is not understood ({error!r})") from error
    return max((time for time in times if time is not None), default=0.0)


def read_alerts(body: bytes) -> tuple[Alert, ...]:
    """Return the pending and firing alerts; ProbeError if the answer has another form."""
    return entries_of(body, "alerts", "alerts", "an alert", _alert)


def _alert(one: Mapping[str, Any]) -> Alert:
    labels, notes = one["labels"], one.get("annotations", {})
    return Alert(
        name=str(labels["alertname"]),
        state=str(one["state"]),
        severity=str(labels.get("severity", "")),
        summary=" ".join(str(notes.get("summary") or notes.get("description") or "").split()),
        hosts=hosts_of(labels),
        past=read_time(str(one.get("keepFiringSince", NEVER))) is not None,
    )


def read_version(body: bytes) -> str:
    """Return Prometheus' version."""
    version = data_of(body, "buildinfo").get("version")
    if not isinstance(version, str):
        raise ProbeError("buildinfo: the answer has no version")
    return version


def read_grafana(body: bytes) -> tuple[str, str]:
    """Return Grafana's version and the state of its database, 'ok' if it works."""
    answer = _json(body, "Grafana's health")
    if not isinstance(answer, dict) or "database" not in answer:
        raise ProbeError("Grafana's health: the answer has no state of the database")
    return str(answer.get("version", "")), str(answer["database"])


def data_of(body: bytes, what: str) -> dict[str, Any]:
    """Return `data` of an answer of Prometheus; ProbeError for an error or another form."""
    answer = _json(body, what)
    data = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(data, dict) or answer.get("status") != "success":
        error = answer.get("error") if isinstance(answer, dict) else None
        raise ProbeError(f"{what}: Prometheus answers {error or 'in another than its documented form'}")
    return data


def entries_of(body: bytes, what: str, key: str, one: str, read: Callable[[Any], T]) -> tuple[T, ...]:
    """Return the entries of a list of an answer; ProbeError if it has another form."""
    found = data_of(body, what).get(key)
    if not isinstance(found, list):
        raise ProbeError(f"{what}: the answer has no {key}")
    try:
        return tuple(map(read, found))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ProbeError(f"{what}: {one} is not understood ({error!r})") from error


def _json(body: bytes, what: str) -> Any:
    try:
        return jsontext.loads(body)
    except ValueError as error:
        raise ProbeError(f"{what}: the answer is not JSON") from error


def read_time(text: str) -> float | None:
    """Return the Unix time of an RFC 3339 time with nanoseconds; None for Go's zero time, which means never.

    ValueError for any other text, also for an incomplete time.
    """
    if text.startswith(NEVER):
        return None
    parts = _TIME.fullmatch(text)
    if not parts:
        raise ValueError(f"no time: {text!r}")
    plain, fraction, zone = parts.groups(default="")
    # Python 3.10 reads only three or six digits; Go writes up to nine without trailing zeros
    return dt.datetime.fromisoformat(f"{plain}.{fraction:0<6.6}{zone.replace('Z', '+00:00')}").timestamp()


def hosts_of(labels: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what may be the name of the node, the most reliable first."""
    named = [str(labels[key]) for key in NODE_LABELS if labels.get(key)]
    # a Prometheus that copies from another one renames the labels of the latter
    copied = [str(labels["exported_instance"])] if labels.get("exported_instance") else []
    return (*named, *(split_port(one)[0] for one in (*copied, str(labels.get("instance", "")))))


def split_port(address: str) -> tuple[str, int | None]:
    """Split HOST:PORT, also [::1]:9100.

    >>> split_port("gpu01:9100"), split_port("[::1]:9100"), split_port("gpu01")
    (('gpu01', 9100), ('::1', 9100), ('gpu01', None))
    """
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal():
        return address.strip("[]"), None
    return host.strip("[]"), int(port)


def owner(hosts: tuple[str, ...], nodes: Mapping[str, str]) -> str:
    """Return the node of the first of `hosts` that is known, '' if none is.

    `nodes` maps names and addresses to nodes. The first part of a full domain name is a name too.
    """
    for host in hosts:
        if host in nodes:
            return nodes[host]
        if not _is_address(host) and host.partition(".")[0] in nodes:
            return nodes[host.partition(".")[0]]
    return ""


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
