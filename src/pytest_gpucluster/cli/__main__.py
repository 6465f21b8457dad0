"""`python -m pytest_gpucluster.cli` is the command `gpucluster`."""

import sys

from pytest_gpucluster.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
