"""What is known and decided without any effect: entries, state, plans, settings."""
