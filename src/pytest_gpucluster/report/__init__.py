"""Events, JUnit, tables."""
