"""The section `monitoring` of a cluster file. The defaults are those of a DeepOps Slurm installation."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from pytest_gpucluster.core.values import OptionalSection, Port

Url = Annotated[str, Field(pattern=r"^https?://[^\s/]+(/\S*)?$")]


class MonitoringConfig(OptionalSection):
    """Prometheus, Grafana and exporters, queried over HTTP from the machine that runs pytest."""

    about = "requires Prometheus, Grafana and exporters"
    order = 13

    prometheus: Url = Field("http://localhost:9090", description="URL of Prometheus")
    grafana: Url | None = Field("http://localhost:3000", description="URL of Grafana; null: there is none")
    exporters: dict[str, Port] = Field({"node_exporter": 9100}, description="exporters on every node, name: port")
    gpu_exporters: dict[str, Port] = Field(
        {"dcgm_exporter": 9400}, description="exporters on every node with GPUs, name: port"
    )
    cluster_exporters: dict[str, Port] = Field(
        {"slurm_exporter": 8080}, description="exporters that run once, on any machine, name: port"
    )
    # highest age of a target's last scrape, or two of its scrape intervals if that is longer
    max_scrape_age: ClassVar[float] = 120
    ignored_alerts: tuple[str, ...] = Field(
        ("Watchdog",), description="patterns of alert names to ignore, like Watchdog, which always fires"
    )
    # every GPU must have at least one of these metrics
    gpu_metrics: ClassVar[tuple[str, ...]] = (
        "DCGM_FI_DEV_GPU_TEMP",
        "nvidia_smi_temperature_gpu",
        "nvidia_gpu_temperature_celsius",
    )
    # time limit of one HTTP answer, to its end
    timeout: ClassVar[float] = 10
