"""Adapters, ports and rails of a node."""
