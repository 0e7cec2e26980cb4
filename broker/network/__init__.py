"""Frames in and out of the client listeners: acceptor, processor, request channel (NET-1, NET-2)."""
