"""The version of the package, which is recorded in every commit of its stores."""

__version__ = "0.2.0"
