"""The mirror inside Spark: what the driver plans and what the tasks do."""
