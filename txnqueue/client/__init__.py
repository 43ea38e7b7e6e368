"""One driver's view of a store: what it has read, and how it appends."""
