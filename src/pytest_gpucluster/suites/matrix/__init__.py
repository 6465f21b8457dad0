"""Launchers by workloads."""
