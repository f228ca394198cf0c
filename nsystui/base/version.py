"""The version of nsystui."""

__version__ = "0.1.0"
