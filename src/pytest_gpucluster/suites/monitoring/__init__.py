"""Prometheus, Grafana and the exporters of the nodes."""

from pytest_gpucluster.core.registry import Suite

SUITE = Suite(
    __name__,
    order=15,
    markers=("monitoring: Prometheus, Grafana and the exporters of the nodes",),
    section="config:MonitoringConfig",
    stated="the URLs of Prometheus and Grafana (prometheus: http://HOST:9090)",
    proof=("monitoring.prometheus", "monitoring.up"),
)
