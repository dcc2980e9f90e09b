"""Trainers' own dumps, read and proved: ``eaglefeed check`` and ``eaglefeed import``."""
