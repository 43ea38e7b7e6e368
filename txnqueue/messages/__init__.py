"""What is planned and done on a queue: send, claim, settle, move, select."""
