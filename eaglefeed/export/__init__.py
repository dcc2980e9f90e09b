"""A run written in a trainer's own format; ``eaglefeed export``."""
