"""How the suite submits its jobs."""

from __future__ import annotations

from pytest_gpucluster.config.models import SlurmConfig
from pytest_gpucluster.suites.controller.jobs import submission


def test_a_job_has_the_site_s_options_and_no_limits_of_this_shell() -> None:
    argv = submission(SlurmConfig(partition="batch", account="ops"), "gpucluster-load", "--wrap=true")
    assert argv[0] == "sbatch"
    assert {"--propagate=NONE", "--time=1", "--partition=batch", "--account=ops", "--wrap=true"} <= {*argv}
    assert not any(word.startswith("--qos") for word in argv)
