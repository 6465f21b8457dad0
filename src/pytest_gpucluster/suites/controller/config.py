"""The section `controller` of a cluster file."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from pytest_gpucluster.core.values import Duration, Section

MOST_SUBMISSIONS = 1000


class ControllerConfig(Section):
    """Slurm's daemons: slurmctld, its backups, its load and the logs of slurmctld and slurmd."""

    about = "limits of slurmctld's load, and which lines of Slurm's logs count"
    order = 8

    backup: bool = Field(default=False, description="slurm.conf must name a backup controller")
    # highest number of slurmctld's threads; its own limit is 256
    max_threads: ClassVar[int] = 192
    # highest number of messages to nodes that wait to be sent again
    max_agent_queue: ClassVar[int] = 1000
    max_cycle: Duration = Field(2, description="highest mean duration of the main scheduler's cycles")
    max_answer: Duration | None = Field(
        None,
        description="highest mean duration of a request, and of sdiag itself; default: MessageTimeout of slurm.conf",
    )
    # older lines of the logs do not count
    log_window: ClassVar[float] = 86_400
    # a known error that drains no node, and that slurmctld repeats while it lasts, is a failure at most within this time
    log_recent: ClassVar[float] = 3600
    # how much of the end of a log is read
    log_size: ClassVar[int] = 4 << 20
    # number of held jobs of controller.burst
    submissions: ClassVar[int] = MOST_SUBMISSIONS
    # time limit of all submissions of controller.burst
    burst_time: ClassVar[float] = 120
    # slurmctld must answer squeue within this time during the submissions
    burst_answer: ClassVar[float] = 10
