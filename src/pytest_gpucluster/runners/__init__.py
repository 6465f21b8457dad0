"""What runs a measurement on the nodes: which program, started how, read into facts."""
