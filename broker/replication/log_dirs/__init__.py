"""Replicas and the disks they are on: failures, and moves between log directories."""
