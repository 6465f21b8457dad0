"""Verdicts on rules and metrics of GPUs, and the readers of Prometheus' answers about them."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import pytest
from counter_examples import CONFIGURE, MONITOR, NOT_APPLICABLE, NOT_CHECKED, PASSED, WARNING, result
from judged import judged

from pytest_gpucluster.config.models import Profile
from pytest_gpucluster.suites.monitoring import gpu_checks, gpu_facts
from pytest_gpucluster.suites.monitoring.config import MonitoringConfig
from pytest_gpucluster.suites.monitoring.facts import MonitoringFacts, Service, Target
from pytest_gpucluster.suites.monitoring.gpu_facts import Rule, Sample

if TYPE_CHECKING:
    from pytest_gpucluster.core.check import Verdict

TEMPERATURE = "DCGM_FI_DEV_GPU_TEMP"
CONFIG = MonitoringConfig()
ABOUT = {"name": "two", "description": "made up", "source": "this test"}
PROFILE = Profile.model_validate({**ABOUT, "gpu": {"count": 2, "name": "NVIDIA H100 80GB HBM3"}})
HOT = Rule("GpuHot", "DCGM_FI_DEV_GPU_TEMP > 90", alerting=True, health="ok")
DOWN = Rule("InstanceDown", "up == 0", alerting=True, health="ok")  # the only rule of DeepOps


def facts(**changes: Any) -> MonitoringFacts:
    target = Target("dcgm", "u", 9400, "up", last_scrape=1000.0, interval=15.0)
    known: dict[str, Any] = {
        "prometheus": Service("Prometheus", "http://localhost:9090", "3.1.0"),
        "grafana": None,
        "targets": {"gpu01": (target,)},
        "samples": {"gpu01": (sample("a"), sample("b"))},
        "samples_now": 1000.0,
        "rules": (HOT, DOWN),
        **changes,
    }
    return MonitoringFacts(**known)


def sample(gpu: str, value: float = 45.0, time: float = 990.0, **more: Any) -> Sample:
    return Sample(TEMPERATURE, value, time, gpu, **more)


def metrics(*samples: Sample, **changes: Any) -> Verdict:
    return gpu_checks.gpu_metrics(facts(samples={"gpu01": samples}, **changes), "gpu01", PROFILE, CONFIG)


@pytest.mark.parametrize(
    ("samples", "found"),
    [
        ((sample("a"), sample("b", 1.0)), []),
        ((sample("a"), sample("b", 0.0)), ["implausible b"]),
        ((sample("a"), sample("b", math.nan)), ["implausible b"]),
        ((sample("a"),), ["count GPUs"]),
        ((sample("a"), sample("b"), sample("c")), ["count GPUs"]),  # those of another node
        ((sample("a"), sample("b", time=940.0)), []),
        ((sample("a"), sample("b", time=939.0)), ["old_value b", "count GPUs"]),
        ((sample("a"), sample("b", time=900.0), sample("b")), []),  # two Prometheus jobs of one GPU
        # without known bounds a number will do
        ((sample("a"), Sample("site_gpu_metric", -5.0, 990.0, "b")), []),
        ((sample("a"), Sample("site_gpu_metric", math.inf, 990.0, "b")), ["implausible b"]),
    ],
)
def test_number_age_and_bounds(samples: tuple[Sample, ...], found: list[str]) -> None:
    verdict = metrics(*samples)
    assert result(verdict) == (MONITOR if found else PASSED)
    assert [f"{it.code} {it.part}" for it in verdict.findings] == found


def test_an_exporter_that_was_not_scraped_yet_is_not_checked() -> None:
    new = {"gpu01": (Target("dcgm", "u", 9400, "unknown", interval=15.0),)}
    assert judged(metrics(targets=new, now=1010.0, began=1000.0)) == (NOT_CHECKED, [])
    assert judged(metrics(targets=new, now=1040.0, began=1000.0)) == (MONITOR, ["GPUs"])
    mig = metrics(sample("a", mig=True), sample("a", mig=True))  # their number is not judged
    assert judged(mig) == (WARNING, ["GPUs"])


def test_what_does_not_apply_and_what_cannot_be_judged() -> None:
    none = Profile.model_validate(ABOUT)
    without = MonitoringConfig(gpu_exporters={})
    for verdict, word in (
        (gpu_checks.gpu_metrics(facts(), "gpu01", none, CONFIG), NOT_APPLICABLE),
        (gpu_checks.gpu_metrics(facts(), "gpu01", PROFILE, without), NOT_APPLICABLE),
        (metrics(samples_problem="no answer"), NOT_CHECKED),
        (gpu_checks.gpu_rules(facts(), without, 1), NOT_APPLICABLE),
        (gpu_checks.gpu_rules(facts(), CONFIG, 0), NOT_APPLICABLE),
        (gpu_checks.gpu_rules(facts(rules_problem="no answer"), CONFIG, 1), NOT_CHECKED),
    ):
        assert judged(verdict)[0] == word


def alerting(query: str, **more: Any) -> Rule:
    return Rule("A", query, **{"alerting": True, "health": "ok", **more})


BROKEN = {"health": "err", "error": "x"}


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ((HOT, DOWN), (PASSED, [])),
        ((DOWN,), (CONFIGURE, ["alerting rules"])),
        ((), (CONFIGURE, ["alerting rules"])),
        ((alerting(HOT.query, alerting=False),), (CONFIGURE, ["alerting rules"])),  # records only
        ((alerting(HOT.query, health="unknown"),), (NOT_CHECKED, [])),
        ((alerting(HOT.query, **BROKEN),), (CONFIGURE, ["rule A"])),
        ((HOT, alerting("up == 0", **BROKEN)), (WARNING, ["rule A"])),
        ((HOT, alerting("up == 0", health="unknown")), (PASSED, [])),
        ((alerting("nvidia_smi_gpu_recovery_action > 0"),), (PASSED, [])),
        ((alerting("my_DCGM_FI_DEV_X > 0"),), (CONFIGURE, ["alerting rules"])),
    ],
)
def test_gpu_rules(rules: tuple[Rule, ...], expected: object) -> None:
    verdict = gpu_checks.gpu_rules(facts(rules=rules), CONFIG, 1)
    assert judged(verdict) == expected


def test_a_rule_may_use_recorded_metrics_of_gpus() -> None:
    first = Rule("job:temp:max", "max(DCGM_FI_DEV_GPU_TEMP)", alerting=False)
    second = Rule("job:temp:max_1h", "max_over_time(job:temp:max[1h])", alerting=False)
    alert = Rule("Hot", "job:temp:max_1h > 90", alerting=True)
    other = Rule("Cold", "job:temp:max_1h_of_others < 1", alerting=True)
    assert gpu_facts.about_gpus((alert, other, second, first)) == {first, second, alert}


DCGM = {"UUID": "GPU-1", "gpu": "0", "Hostname": "gpu01", "instance": "10.0.0.1:9400"}


@pytest.mark.parametrize(
    ("labels", "gpu", "hosts"),
    [
        (DCGM, "GPU-1", ("gpu01", "10.0.0.1")),
        ({"uuid": "1", "instance": "gpu01:9835"}, "1", ("gpu01",)),
        ({"minor_number": "0", "instance": "gpu01:9445"}, "0", ("gpu01",)),
        # copied from another Prometheus
        ({"UUID": "1", "exported_instance": "gpu01:9400", "instance": "ctl:9090"}, "1", ("gpu01", "ctl")),
    ],
)
def test_labels_of_the_exporters(labels: dict[str, str], gpu: str, hosts: tuple[str, ...]) -> None:
    series = {"metric": {"__name__": TEMPERATURE, **labels}, "values": [[1.0, "44"], [2.5, "45"]]}
    body = json.dumps({"status": "success", "data": {"resultType": "matrix", "result": [series]}}).encode()
    (found,) = gpu_facts.read_samples(body)
    assert (found.gpu, found.hosts, found.value, found.time) == (gpu, hosts, 45.0, 2.5)
