"""Create, alter, drop, maintain and recover the contents of a store."""
