"""`ottla inspect conformance`: the same requests to two brokers, and each difference between their answers."""
