"""The suites and the tests find everything in the plugin; this file marks the root of the project."""
