"""Pyxis and Enroot."""
