"""Does a process listen at an address? Connections that answer it, for the controller and for brokers (CTL-16)."""
