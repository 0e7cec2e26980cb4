"""hypothesis strategies for the values that Kafka's messages hold."""

from __future__ import annotations

from hypothesis import strategies as st

int16s = st.integers(-(2**15), 2**15 - 1)
int32s = st.integers(-(2**31), 2**31 - 1)
int64s = st.integers(-(2**63), 2**63 - 1)
error_codes = st.integers(-1, 107)
durations_ms = st.integers(0, 2**31 - 1)
times_ms = st.integers(-1, 4_000_000_000_000)
names = st.text(max_size=20) | st.integers(100, 249).map("t".ljust)
uuids = st.uuids()
"""All-zero does not occur: it is kio's None."""
