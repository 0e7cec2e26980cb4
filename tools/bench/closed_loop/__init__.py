"""Loads for any Kafka address, as closed loops: a C program, the same in asyncio, and librdkafka; and what `ottla bench` prints of them."""
