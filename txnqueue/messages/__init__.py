"""The operations on a queue: send, claim, settle, move, select."""
