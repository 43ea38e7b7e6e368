"""The version of the package, which every commit of its stores names."""

__version__ = "0.2.0"
