"""The specifications in their own terms: each module is a thin view of the same core.

A transaction that one of them starts is one of the store's: it is listed, recovered and decided
through the manager like every other, and what it does lies in the store's tables.
"""
