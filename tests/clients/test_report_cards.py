"""The report card of each client (docs/CLIENTS.md): twelve failures, and what they cost; whatever is lost or doubled is known."""

from __future__ import annotations

import pytest

from tests.clients import results
from tests.clients.cards import Cards, run_cards
from tests.clients.clients import CLIENTS, Client
from tests.conftest import running_clusters
from tools.verify.recipes import RECIPES

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

WITHOUT_A_CARD = ("kcat", "Kafka's command line tools")
"""They do not say which of their records failed."""
ABOUT_GROUPS = {"coordinator-moved", "lost-commit", "rebalance"}
WITH_A_CARD = [client for client in CLIENTS if client.name not in WITHOUT_A_CARD]


@pytest.fixture(scope="module")
def cards(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Cards:
    """Of the selected clients that can be built here. One run for all of them, of three minutes."""
    selected = [
        item.callspec.params["client"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.path == request.path
    ]
    clients = [client for client in selected if client.why_not() is None]
    overrides = {"offsets.topic.num.partitions": "6"}
    with running_clusters(tmp_path_factory.mktemp("cards")) as start:
        found, verdict, watch = run_cards(start(brokers=3, overrides=overrides), clients)
    assert not verdict.incomplete, "\n".join([*verdict.incomplete, *watch.lines])
    return found


@pytest.mark.parametrize("client", WITH_A_CARD, ids=lambda client: client.name)
def test_the_report_card(client: Client, request: pytest.FixtureRequest) -> None:
    reason = client.why_not()
    if reason is not None:
        pytest.skip(f"{client.name}: {reason}")
    card = request.getfixturevalue("cards")[client.name]
    for name in RECIPES:
        results.record_card(client, name, card[name])
    unknown = {name: result for name, result in card.items() if result.found and name not in client.fails}
    assert not unknown
    has_groups = "rebalance" not in client.lacks
    assert {name for name, result in card.items() if not result.is_tried} <= (set() if has_groups else ABOUT_GROUPS)
