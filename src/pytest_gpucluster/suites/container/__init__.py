"""Pyxis and Enroot on every node."""
