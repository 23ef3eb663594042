"""Record batches as bytes: fetched, classified, joined and produced on connections that one thread owns."""
