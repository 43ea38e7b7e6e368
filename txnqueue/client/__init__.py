"""One driver's view of a store: its cache, its states, and its appends."""
