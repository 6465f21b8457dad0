"""The command that submits a small batch job."""

from __future__ import annotations

from pytest_gpucluster.cluster.slurm.batch import submission
from pytest_gpucluster.config.models import SlurmConfig


def test_a_job_has_the_site_s_options_and_no_limits_of_this_shell() -> None:
    where = SlurmConfig(partition="p", account="a", qos="q", reservation="r", comment="c")
    own = "sbatch --propagate=NONE --parsable --nodes=1 --ntasks=1 --time=1 --output=/dev/null --job-name=n"
    site = "--partition=p --account=a --qos=q --reservation=r --comment=c"
    assert " ".join(submission(where, "n", "--hold")) == f"{own} {site} --hold"
    assert " ".join(submission(SlurmConfig(), "n")) == own
    assert "--partition=other" in submission(where, "n", partition="other")
