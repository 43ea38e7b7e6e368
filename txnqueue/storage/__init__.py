"""Where it is kept: the journal, the payload, the users' tables; the only room that knows Delta."""
