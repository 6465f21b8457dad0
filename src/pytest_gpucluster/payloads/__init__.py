"""Programs that steps run on the nodes."""
