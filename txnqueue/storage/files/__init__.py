"""Read-only access to a store through its files, without Spark."""
