"""The control plane of one broker: it carries out the controller's requests."""
