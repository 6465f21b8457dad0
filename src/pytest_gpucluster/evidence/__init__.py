"""Case files: the evidence of a failed part, taken on its node before anything is done to the node."""
