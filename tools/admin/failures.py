"""Errors of requests to a cluster, in one line for a person."""

from __future__ import annotations


class AdminError(Exception):
    """A failed request: one line that says what went wrong and what to do."""


class NoClusterNamed(AdminError):
    """No option, no variable and no run directory names a cluster."""


class TopicExists(AdminError):
    """The topic to create exists."""


class NotServed(AdminError):
    """The cluster does not support the API that the request needs."""
