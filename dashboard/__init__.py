"""One page of progress, and the same numbers for Prometheus and the terminal."""
