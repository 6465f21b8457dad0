"""What one run holds, without pytest: the session, the facts of nodes, and what is recorded of an item."""
