"""Storage of the journal, the payload and the users' tables; the only package that knows Delta."""
