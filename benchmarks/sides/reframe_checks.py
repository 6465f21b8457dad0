"""The 40 checks as ReFrame tests: one test a check and node, as its own documentation has node checks."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import reframe as rfm
import reframe.utility.sanity as sn
from reframe.core.builtins import parameter, run_before, sanity_function

sys.path.insert(0, str(Path(__file__).parent))

from questions import asked

CHECKS, NODES = asked()
BY_NAME = {question.name: question for question in CHECKS}


@rfm.simple_test
class QuestionTest(rfm.RunOnlyRegressionTest):
    """One check on one node."""

    question = parameter(list(BY_NAME))
    where = parameter(NODES)
    valid_systems = ["*"]  # so ReFrame has it
    valid_prog_environs = ["*"]
    executable = "sh"
    num_tasks = 1
    time_limit = "10m"

    @run_before("run")
    def place(self) -> None:
        """Run the check's command on its node."""
        self.executable_opts = ["-c", shlex.quote(BY_NAME[self.question].command)]
        self.job.options = [f"--nodelist={self.where}"]

    @sanity_function
    def right(self) -> Any:
        """Judge by the same pattern as everybody."""
        answer = Path(self.stagedir, self.stdout.evaluate()).read_text()
        return sn.assert_true(BY_NAME[self.question].right(answer))
