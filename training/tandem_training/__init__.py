"""Trains what lets a target draft for itself: see ../README.md."""


class Refused(Exception):
    """An input that cannot be used. The message says what was wrong with which value, and what would be right."""
