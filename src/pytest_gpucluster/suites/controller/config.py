"""The section `controller` of a cluster file."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from pytest_gpucluster.core.known_lines import Pattern
from pytest_gpucluster.core.values import Count, Duration, Section, Size

MOST_SUBMISSIONS = 1000


class ControllerConfig(Section):
    """Slurm's daemons: slurmctld, its backups, its load and the logs of slurmctld and slurmd."""

    about = "limits of slurmctld's load, and which lines of Slurm's logs count"
    order = 8

    backup: bool = Field(default=False, description="slurm.conf must name a backup controller")
    max_threads: Count = Field(192, description="highest number of slurmctld's threads; its own limit is 256")
    max_agent_queue: Count = Field(
        1000, description="highest number of messages to nodes that wait to be sent again"
    )
    max_cycle: Duration = Field(2, description="highest mean duration of the main scheduler's cycles")
    max_backfill: Duration | None = Field(
        None,
        description="highest mean duration of the backfill scheduler's cycles; default: bf_max_time or bf_interval "
        "of SchedulerParameters, else 30 s",
    )
    max_answer: Duration | None = Field(
        None,
        description="highest mean duration of a request, and of sdiag itself; default: MessageTimeout of slurm.conf",
    )
    log_window: Duration = Field(86_400, description="older lines of the logs do not count")
    log_recent: Duration = Field(
        3600,
        description="a known error that drains no node, and that slurmctld repeats while it lasts, is a failure at most within "
        "this time",
    )
    log_size: Size = Field(4 << 20, description="how much of the end of a log is read")
    ignored_errors: tuple[Pattern, ...] = Field(
        (), description="regular expressions; lines of the logs with a match do not count"
    )
    submissions: Annotated[int, Field(ge=1, le=MOST_SUBMISSIONS)] = Field(
        MOST_SUBMISSIONS, description="number of held jobs of controller.burst"
    )
    burst_time: Duration = Field(120, description="time limit of all submissions of controller.burst")
    burst_answer: Duration = Field(
        10, description="slurmctld must answer squeue within this time during the submissions"
    )
