"""Load generators: a C program, the same in asyncio, and librdkafka; what they measure is printed by `ottla bench`."""
