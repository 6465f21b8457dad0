"""What programs read: events, JUnit, Prometheus, the record of acceptance, the folder of a run."""
