"""Reading and aggregating the registration topic on Spark."""
