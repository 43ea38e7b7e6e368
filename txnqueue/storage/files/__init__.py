"""A store read from its files alone: without Spark, and without writing anything."""
