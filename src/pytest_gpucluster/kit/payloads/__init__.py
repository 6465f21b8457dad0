"""Programs that steps of several suites run on the nodes."""
