"""Prometheus, Grafana and the exporters of the nodes."""
