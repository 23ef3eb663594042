"""Topics as Spark DataFrames, record by record: what ``spark.read.format("klamm-kafka")`` means, without Spark."""
