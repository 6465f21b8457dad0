"""The section `controller` of a cluster file."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from pytest_gpucluster.core.values import Section


class ControllerConfig(Section):
    """Slurm's daemons: slurmctld, its backups and its load."""

    about = "limits of slurmctld's load"
    order = 8

    backup: bool = Field(default=False, description="slurm.conf must name a backup controller")
    # highest number of slurmctld's threads; its own limit is 256
    max_threads: ClassVar[int] = 192
    # highest number of messages to nodes that wait to be sent again
    max_agent_queue: ClassVar[int] = 1000
    # highest mean duration of the main scheduler's cycles, unless max_sched_time is longer
    max_cycle: ClassVar[float] = 2
    # seconds; older lines of the logs do not count where no accepted run is known
    log_window: ClassVar[float] = 86_400
    # how much of the end of a log is read
    log_size: ClassVar[int] = 4 << 20
