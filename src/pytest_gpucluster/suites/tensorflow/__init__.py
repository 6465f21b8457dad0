"""TensorFlow's distribution strategies."""
