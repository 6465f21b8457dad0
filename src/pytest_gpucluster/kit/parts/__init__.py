"""The parts of a node by serial number."""
