"""The control plane of one broker: what the controller tells it."""
