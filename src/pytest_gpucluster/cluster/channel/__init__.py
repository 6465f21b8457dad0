"""One channel to every node of an allocation."""
