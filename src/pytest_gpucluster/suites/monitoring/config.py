"""What a cluster file claims of its monitoring. The defaults are those of a DeepOps Slurm installation."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from pytest_gpucluster.config.values import Duration, Model, Port, Text

Url = Annotated[str, Field(pattern=r"^https?://[^\s/]+(/\S*)?$")]


class MonitoringConfig(Model):
    """Prometheus, Grafana and exporters: asked over HTTP from the machine that pytest runs on."""

    prometheus: Url = Field("http://localhost:9090", description="where Prometheus answers")
    grafana: Url | None = Field(
        "http://localhost:3000", description="where Grafana answers; null: there is none"
    )
    exporters: dict[str, Port] = Field(
        {"node_exporter": 9100}, description="name: port of what every node exports"
    )
    gpu_exporters: dict[str, Port] = Field(
        {"dcgm_exporter": 9400}, description="name: port of what every node with GPUs exports"
    )
    cluster_exporters: dict[str, Port] = Field(
        {"slurm_exporter": 8080}, description="name: port of what is exported once, on any machine"
    )
    max_scrape_age: Duration = Field(120, description="a target was scraped within this time")
    alerts: bool = Field(default=True, description="a firing alert is a failure")
    ignored_alerts: tuple[str, ...] = Field(
        ("Watchdog",),
        description="patterns of alert names that are no failure, like Watchdog, which always fires",
    )
    prometheus_version: Text | None = Field(None, description="version, from its beginning, like 2.53")
    grafana_version: Text | None = Field(None, description="version, from its beginning, like 11.")
    timeout: Duration = Field(10, description="for one answer, to its end")
