"""One consumer group as a pure state machine: requests and times go in, answers and stores come out."""
