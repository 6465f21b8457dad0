"""The machine: kernel log, limits, software, ports."""
