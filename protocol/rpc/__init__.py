"""The control plane's RPC (FMT-4): length-prefixed msgpack between controller and brokers, on a separate listener."""
