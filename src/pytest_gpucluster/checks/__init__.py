"""Facts held against expectations. Pure."""
