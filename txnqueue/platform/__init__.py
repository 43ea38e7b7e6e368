"""The local machine: Spark, Java, the jars."""
