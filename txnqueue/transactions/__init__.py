"""An attempt of a transaction: its work, its decision, its participants, its table changes."""
