"""`python -m pytest_gpucluster` is the command `gpucluster`."""

import sys

from pytest_gpucluster.cli import command

if __name__ == "__main__":
    sys.exit(command())
