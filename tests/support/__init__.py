"""Helpers of the tests: processes, raw wire access, invariant checks. Nothing here is part of the product."""
