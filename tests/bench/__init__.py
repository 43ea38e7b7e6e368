"""What operations cost beside what plain Delta costs for the same rows: ``bash tests/bench.sh``."""
