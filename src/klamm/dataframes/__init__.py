"""Topics as DataFrames, record by record: the parts of Spark's format ``klamm-kafka`` that do not need Spark."""
