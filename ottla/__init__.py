"""A real cluster of ottla for tests: `with OttlaCluster() as cluster:`. With pytest, use the fixtures instead (docs/TESTING.md)."""

from ottla.cluster import Fault, OttlaCluster
from ottla.owner_process import OttlaError
from ottla.users import User
from ottla.verdict import Result, Verdict

__all__ = ["Fault", "OttlaCluster", "OttlaError", "Result", "User", "Verdict"]
