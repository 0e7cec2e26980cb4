"""Shared by the APIs: the services they call, work in steps, waiting until a change is visible."""
