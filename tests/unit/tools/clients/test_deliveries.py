"""Only acknowledged lines count as acknowledged."""

from __future__ import annotations

from tools.clients.deliveries import COMPLAINTS_MAX, Deliveries, Delivery


def test_counts_and_words() -> None:
    said: list[str] = []
    deliveries = Deliveries("orders", said.append)
    for line, outcome in enumerate(Delivery, 1):
        deliveries.add(outcome, line, f"why {line}")
    assert said == ["line 3: why 3", "line 4: why 4", "line 5: why 5", "line 6: why 6"]
    assert deliveries.failures() == (
        "4 of 6 lines were not acknowledged: 1 malformed, 1 refused, 1 not sent, 1 unknown (may have been written)"
    )
    counts = dict.fromkeys(("acknowledged", "sent", "malformed", "refused", "not_sent", "unknown"), 1)
    assert deliveries.as_json() == {"topic": "orders"} | counts


def test_only_the_first_bad_lines_are_printed() -> None:
    said: list[str] = []
    deliveries = Deliveries("orders", said.append)
    for line in range(1, 1001):
        deliveries.add(Delivery.BAD, line, "no key separator")
    assert len(said) == COMPLAINTS_MAX + 1
    assert deliveries.failed == 1000
