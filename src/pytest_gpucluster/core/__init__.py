"""Checks, probes, verdicts and text: no input, no output."""
