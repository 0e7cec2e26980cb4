"""Random schedules of everything that can happen to a group keep INV-24, and it ends Stable when it is left alone (CLI-2)."""

from __future__ import annotations

from typing import ClassVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from broker.groups.group.messages import GroupSettings
from broker.groups.group.states import TRANSITIONS, Cause, GroupState
from protocol.errors import ErrorCode
from tests.support.group_world import Client, GroupWorld

CLIENTS_MAX = 5
FAILURES = [ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR, ErrorCode.REBALANCE_IN_PROGRESS]
which = st.integers(0, 1_000_000)


class GroupSchedules(RuleBasedStateMachine):
    rows: ClassVar[set[tuple[GroupState, Cause]]] = set()

    @initialize(
        delay_ms=st.sampled_from([0, 3_000]),
        max_size=st.sampled_from([100, 100, 3]),
        rebalance_ms=st.sampled_from([5_000, 20_000]),
        instances=st.lists(st.sampled_from([None, "a", "b", "b"]), min_size=1, max_size=4),
    )
    def start(self, delay_ms: int, max_size: int, rebalance_ms: int, instances: list[str | None]) -> None:
        """With a few clients, if any, whose group is Stable. Rebalances may take longer than sessions, or less."""
        self.world = GroupWorld(GroupSettings(initial_rebalance_delay_ms=delay_ms, max_size=max_size), rebalance_ms)
        for number, instance in enumerate(instances):
            self.world.clients.append(Client(instance, needs_id=number % 2 == 0, can_skip=number % 3 == 0))
        self.world.settle()

    def a_client(self, index: int) -> Client | None:
        clients = self.world.live_clients()
        return clients[index % len(clients)] if clients else None

    @rule(instance=st.sampled_from([None, None, "a", "b"]), needs_id=st.booleans(), can_skip=st.booleans())
    def client_starts(self, instance: str | None, needs_id: bool, can_skip: bool) -> None:
        """A client, perhaps with the instance id of one that lives or has just died."""
        if len(self.world.live_clients()) < CLIENTS_MAX:
            client = Client(instance, needs_id, can_skip)
            self.world.clients.append(client)
            self.world.act(client)

    @rule(index=which, times=st.integers(1, 3))
    def client_acts(self, index: int, times: int) -> None:
        client = self.a_client(index)
        for _ in range(times if client else 0):
            assert client is not None
            self.world.act(client)

    @rule()
    def all_act(self) -> None:
        for client in self.world.live_clients():
            self.world.act(client)

    @rule(index=which, more=st.sampled_from([0, 1]))
    def client_joins_again(self, index: int, more: int) -> None:
        """With the same topics, or with more."""
        client = self.a_client(index)
        if client is not None and client.phase in ("member", "joined"):
            client.subscription += more
            client.phase = "out"
            self.world.act(client)

    @rule(index=which)
    def client_gives_a_request_up(self, index: int) -> None:
        """The answer will be lost, and the client sends the request again."""
        client = self.a_client(index)
        if client is not None and client.ticket is not None:
            client.ticket = None
            client.phase = "out"

    @rule(index=which)
    def client_dies(self, index: int) -> None:
        client = self.a_client(index)
        if client is not None:
            client.phase = "gone"

    @rule(instance=st.sampled_from(["a", "b"]), can_skip=st.booleans(), twins=st.booleans())
    def static_member_starts_again(self, instance: str, can_skip: bool, twins: bool) -> None:
        """`twins`: the earlier instance continues too, until it learns that it is fenced."""
        for client in self.world.live_clients():
            if client.instance == instance and not twins:
                client.phase = "gone"
        self.client_starts(instance, False, can_skip)

    @rule()
    def all_act_until_something_is_stored(self) -> None:
        for _ in range(4):
            if not self.world.stores_under_way():
                self.all_act()

    @rule(index=which)
    def client_leaves(self, index: int) -> None:
        client = self.a_client(index)
        if client is not None:
            self.world.leave(client)

    @rule(instance=st.sampled_from(["a", "b"]))
    def instance_is_removed(self, instance: str) -> None:
        self.world.remove_instance(instance)

    @rule(index=which)
    def somebody_commits_or_beats(self, index: int) -> None:
        """Includes the dead, and those that were fenced."""
        if self.world.clients:
            client = self.world.clients[index % len(self.world.clients)]
            self.world.commit(client)
            if client.phase in ("member", "joined"):
                self.world.beat(client)

    @rule(index=which, recent=st.booleans())
    def a_request_comes_twice_or_late(self, index: int, recent: bool) -> None:
        sent = self.world.sent[-4:] if recent else self.world.sent
        if sent:
            self.world.send_again(sent[index % len(sent)])

    @precondition(lambda self: self.world.stores_under_way())
    @rule(index=which, error=st.one_of(st.just(ErrorCode.NONE), st.sampled_from(FAILURES)))
    def a_store_ends(self, index: int, error: ErrorCode) -> None:
        under_way = self.world.stores_under_way()
        self.world.finish_store(under_way[index % len(under_way)], error)

    @precondition(lambda self: self.world.stores_under_way())
    @rule(error=st.sampled_from(FAILURES))
    def all_stores_fail(self, error: ErrorCode) -> None:
        for store in self.world.stores_under_way():
            self.world.finish_store(store, error)

    @rule(seconds=st.sampled_from([0.5, 2.0, 6.0, 11.0, 21.0, 50.0, 301.0]), acting=st.booleans())
    def time_passes(self, seconds: float, acting: bool) -> None:
        self.world.pass_time(seconds, acting=acting)

    @rule(kept=st.integers(0, 3), max_size=st.sampled_from([None, None, None, 1]))
    def coordinator_moves(self, kept: int, max_size: int | None) -> None:
        world = self.world
        delay_ms = world.settings.initial_rebalance_delay_ms
        smaller = GroupSettings(initial_rebalance_delay_ms=delay_ms, max_size=max_size) if max_size else None
        world.fail_over(kept, smaller)

    @precondition(lambda self: self.world.group.state is GroupState.EMPTY)
    @rule()
    def group_is_deleted(self) -> None:
        self.world.delete()

    @rule()
    def left_alone(self) -> None:
        self.world.settle()

    @invariant()
    def nothing_is_lost(self) -> None:
        self.world.check_group()

    def teardown(self) -> None:
        self.world.settle()
        self.world.check_group()
        self.rows.update(self.world.rows)


ONLY_EMPTY_GROUPS_ARE_DELETED = {(state, Cause.DELETED) for state in GroupState if state is not GroupState.EMPTY}


def test_random_schedules_keep_one_owner_and_end_stable() -> None:
    """INV-24. All schedules together use every row of the transition table."""
    GroupSchedules.rows.clear()
    run_state_machine_as_test(
        GroupSchedules,
        settings=settings(
            max_examples=150,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert set(TRANSITIONS) - GroupSchedules.rows <= ONLY_EMPTY_GROUPS_ARE_DELETED
