"""Accept or reject a Slurm GPU cluster with pytest.

Nothing is imported here: every pytest of the machine loads the plugin, and it must cost the others nothing.
"""

__version__ = "0.2.0"


def suites_path() -> str:
    """Return the folder of the acceptance suites."""
    from pathlib import Path

    return str(Path(__file__).parent / "suites")
