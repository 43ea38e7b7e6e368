"""Knowledge and decisions without side effects: entries, states, plans, settings."""
