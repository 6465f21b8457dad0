# PYTHON_ARGCOMPLETE_OK: shells with global completion search this mark
"""The command `gpucluster`."""

import sys

from pytest_gpucluster import SuiteError


def command() -> int:
    """Run the command and return its exit status; a suite that cannot be imported is one line on stderr, status 4."""
    try:
        if sys.argv[1:2] == ["gate"]:  # on each node at each job: nothing of the other commands is imported
            from pytest_gpucluster.cli.gate import main
        else:
            from pytest_gpucluster.cli.main import main  # the sections of all suites are imported with it
    except SuiteError as error:
        print(f"gpucluster: error: {error}", file=sys.stderr)
        return 4
    return main()
