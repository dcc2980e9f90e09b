"""Measured comparisons on this machine."""
