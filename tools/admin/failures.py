"""What goes wrong with a request to a cluster, in one line for a person."""

from __future__ import annotations


class AdminError(Exception):
    """A failed request: one line that says what is wrong and what to do."""


class TopicExists(AdminError):
    """The topic to create is there already."""


class NotServed(AdminError):
    """The cluster does not have the API that the request needs."""
