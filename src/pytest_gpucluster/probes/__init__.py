"""Text of one command into facts. Pure."""
