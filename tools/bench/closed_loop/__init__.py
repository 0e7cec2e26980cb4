"""Loads for any Kafka address, as closed loops: a C program, librdkafka, and consumer groups; and what `ottla bench` prints of them."""
