"""An audit page: its figures, computed in one reading of the entries, and the page itself."""
