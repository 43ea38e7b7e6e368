"""Specifications in their own terms: each module is a thin layer over the same core.

A transaction that one of them starts is a transaction of the store: it is listed, recovered and
decided through the manager like any other, and its effects are in the store's tables.
"""
