# PYTHON_ARGCOMPLETE_OK: shells with global completion search this mark
"""The command `gpucluster`."""

import gc
import sys

from pytest_gpucluster import SuiteError
from pytest_gpucluster.cli.errors import complain, no_harm, of_slurm


def command() -> int:
    """Run the command and return its exit status; a suite that cannot be imported is one line on stderr, status 4."""
    gate = sys.argv[1:2] == ["gate"]
    try:
        if gate:  # on each node at each job: nothing of the other commands is imported
            gc.disable()  # an eighth of its time, for a process that ends at once
            from pytest_gpucluster.cli.gate import main
        else:
            from pytest_gpucluster.cli.main import main  # the sections of all suites are imported with it
    except Exception as error:  # also a broken installation
        if gate and of_slurm(sys.argv[1:]):
            return no_harm(error)
        if isinstance(error, SuiteError):
            return complain(error, 4)
        raise
    return main()
