"""Steps of frameworks, and the payloads that they run."""
