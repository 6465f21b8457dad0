"""Rules and GPU metrics of Prometheus. Pure.

Formats: /api/v1/rules and /api/v1/query of https://prometheus.io/docs/prometheus/latest/querying/api/. Names and labels:
dcgm-exporter 2.x to 4.x (internal/pkg/rendermetrics), nvidia_gpu_exporter (`nvidia_smi_*`, label uuid) and
nvidia_gpu_prometheus_exporter (`nvidia_gpu_*`, labels uuid and minor_number).
"""

from __future__ import annotations

import re
import urllib.parse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core.errors import ProbeError
from pytest_gpucluster.core.part import Part, gpu
from pytest_gpucluster.suites.monitoring.facts import data_of, entries_of, hosts_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

RULES = "/api/v1/rules"
QUERY = "/api/v1/query?query="
TEMPERATURES = ("DCGM_FI_DEV_GPU_TEMP", "nvidia_smi_temperature_gpu", "nvidia_gpu_temperature_celsius")
# what no working GPU can be outside of: GPUs switch off below 115 degrees; DCGM's values for "none" are above 2e9
_TEMPERATURE, _PERCENT = (1.0, 120.0, "C"), (0.0, 100.0, "%")
BOUNDS: Mapping[str, tuple[float, float, str]] = {
    **dict.fromkeys(TEMPERATURES, _TEMPERATURE),
    "DCGM_FI_DEV_GPU_UTIL": _PERCENT,
    "nvidia_smi_utilization_gpu_ratio": (0.0, 1.0, "of the time"),
    "nvidia_gpu_duty_cycle": _PERCENT,
}
_GPU_METRIC = re.compile(r"(?<![A-Za-z0-9_:])(?:DCGM|dcgm|nvidia_smi|nvidia_gpu)_\w+")
_CONSTANT = re.compile(r"\s*vector\(\s*[\d.]+\s*\)\s*")
_UUID, _INDEX = ("UUID", "uuid", "gpu_uuid"), ("gpu", "minor_number", "device")
_MIG = ("GPU_I_ID", "GPU_I_PROFILE")


@dataclass(frozen=True)
class Rule:
    """One rule. `health` is ok, err or unknown (not evaluated yet). `alerting`: else it records a metric."""

    name: str
    query: str
    alerting: bool
    health: str = "unknown"
    error: str = ""

    @property
    def heartbeat(self) -> bool:
        """Whether its alert always fires, to prove that alerts arrive: it has no condition."""
        return self.alerting and _CONSTANT.fullmatch(self.query) is not None


@dataclass(frozen=True)
class Sample:
    """The last value of one series. `time` is Unix time, by the clock of Prometheus.

    `gpu`: UUID, else index; `mig`: it is that of a MIG instance; `target`: job and instance of its scrape.
    """

    metric: str
    value: float
    time: float
    gpu: str
    mig: bool = False
    hosts: tuple[str, ...] = ()
    target: tuple[str, str] = ("", "")

    @property
    def part(self) -> Part:
        """The GPU as a part."""
        return gpu(int(self.gpu)) if self.gpu.isdecimal() else gpu(None, uuid=self.gpu)


def read_rules(body: bytes) -> tuple[Rule, ...]:
    """Return the loaded rules; ProbeError if the answer has another form."""
    groups = entries_of(body, "rules", "groups", "a rule", lambda group: [_rule(one) for one in group["rules"]])
    return tuple(rule for rules in groups for rule in rules)


def _rule(one: Mapping[str, Any]) -> Rule:
    return Rule(
        name=str(one["name"]),
        query=str(one["query"]),
        alerting=one["type"] == "alerting",
        health=str(one.get("health", "unknown")),
        error=" ".join(str(one.get("lastError", "")).split()),
    )


def about_gpus(rules: Iterable[Rule]) -> frozenset[Rule]:
    """Return the rules whose expression uses a metric of GPUs, itself or through recording rules."""
    known = list(rules)
    found = {rule for rule in known if _GPU_METRIC.search(rule.query)}
    while True:
        names = [re.escape(rule.name) for rule in found if not rule.alerting]
        uses = re.compile(rf"(?<![\w:])(?:{'|'.join(names)})(?![\w:])") if names else None
        more = {rule for rule in known if uses and rule not in found and uses.search(rule.query)}
        if not more:
            return frozenset(found)
        found |= more


def samples_path(metrics: Collection[str], window: float) -> str:
    """Return the path of one query for the raw samples of all nodes: an instant vector would hide their age."""
    names = "|".join(re.escape(name) for name in metrics)
    return QUERY + urllib.parse.quote(f'{{__name__=~"{names}"}}[{window:.0f}s]')


def read_samples(body: bytes) -> tuple[Sample, ...]:
    """Return the last sample of each series of a range vector; ProbeError if the answer has another form."""
    data = data_of(body, "query")
    found = data.get("result")
    if data.get("resultType") != "matrix" or not isinstance(found, list):
        raise ProbeError("query: the answer is no range vector")
    try:
        return tuple(_sample(one["metric"], *one["values"][-1]) for one in found if one.get("values"))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise ProbeError(f"query: a series is not understood ({error!r})") from error


def _sample(labels: Mapping[str, Any], time: float, value: str) -> Sample:
    name = next((str(labels[key]) for key in (*_UUID, *_INDEX) if labels.get(key)), "")
    return Sample(
        metric=str(labels["__name__"]),
        value=float(value),  # also NaN and +Inf
        time=float(time),
        gpu=name,
        mig=any(labels.get(key) for key in _MIG),
        hosts=hosts_of(labels),
        target=(str(labels.get("job", "")), str(labels.get("instance", ""))),
    )
