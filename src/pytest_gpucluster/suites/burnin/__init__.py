"""Hours of load on all parts of the nodes."""
