"""Make, alter, drop, keep and recover what a store has."""
