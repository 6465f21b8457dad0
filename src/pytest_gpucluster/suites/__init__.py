"""The acceptance suites; a package, so that `pytest --pyargs pytest_gpucluster.suites` finds them in the wheel."""
