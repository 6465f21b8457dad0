"""The test of the campaign in busy_cluster.py for ReFrame, which --distribute=all makes one job a node of."""

from __future__ import annotations

from typing import Any

import reframe as rfm
import reframe.utility.sanity as sn
from reframe.core.builtins import sanity_function


@rfm.simple_test
class CountTest(rfm.RunOnlyRegressionTest):
    """A node has its eight GPUs."""

    valid_systems = ["*"]  # so ReFrame has it
    valid_prog_environs = ["*"]
    executable = "nvidia-smi"
    executable_opts = ["-L"]
    num_tasks = 1
    time_limit = "2m"

    @sanity_function
    def right(self) -> Any:
        """Count the lines of GPUs."""
        return sn.assert_eq(sn.count(sn.findall("^GPU ", self.stdout)), 8)
