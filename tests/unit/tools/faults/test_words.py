"""The vocabulary of faults: what is read, alike from a line, a command and a file, and what is refused with a reason (FAU-1, FAU-2)."""

from __future__ import annotations

import re

import pytest

from tools.cluster.links.rules import Effect
from tools.faults.faults import ACTIONS
from tools.faults.words import LASTING, VERBS, Breakage, FaultError, Role, Words, parse_words, role_of

CUT = Effect(is_cut=True)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kill leader of t-0", Words("kill", "leader of t-0")),
        ("kill leader t-0", Words("kill", "leader of t-0")),
        ("stop follower my-own-topic-12 for 1m30s", Words("stop", "follower of my-own-topic-12", lasts_s=90)),
        ("pause  coordinator  a group  at 500ms", Words("pause", "coordinator of a group", at_s=0.5)),
        ("bounce transaction-coordinator tx-1", Words("bounce", "transaction-coordinator of tx-1")),
        ("fill-disk broker 2 for 3s at 4s", Words("fill-disk", "broker 2", lasts_s=3, at_s=4)),
        ("heal", Words("heal", "")),
        ("heal at 2s", Words("heal", "", at_s=2)),
        ("heal it", Words("heal", "it")),
        ("isolate controller", Words("isolate", "controller", Breakage())),
        ("isolate broker 2 --from zookeeper", Words("isolate", "broker 2", Breakage(("zookeeper",)))),
        ("cut broker 2 from broker:3 one-way in", Words("cut", "broker 2", Breakage(("broker:3",), "in"))),
        (
            "cut broker 2 from peers,zookeeper delay 100ms throttle 3Mbit reset half",
            Words("cut", "broker 2", Breakage(("peers", "zookeeper"), "both", Effect(False, 0.1, 3e6, True, True))),
        ),
        ("kill coordinator of for ever and a day", Words("kill", "coordinator of for ever and a day")),
    ],
)
def test_words_that_are_read(text: str, words: Words) -> None:
    assert parse_words(text) == words
    assert parse_words(str(words)) == words, "what is written down can be read again"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "'' is no action; the actions are kill, stop"),
        ("drown broker 1", "'drown' is no action"),
        ("kill", "names no role; the roles are leader of"),
        ("kill at 3s", "names no role"),
        ("kill somebody", "'somebody' is no role"),
        ("kill leader of t", "is no role"),
        ("kill broker x", "is no role"),
        ("kill broker 1 at 3", "'3' is not a duration"),
        ("kill broker 1 at 3s at 4s", "has at twice"),
        ("bounce broker 1 for 3s", "bounce has no end, so it cannot have `for`"),
        ("kill broker 1 from peers", "from is for isolate and cut, not for kill"),
        ("pause broker 1 reset", "reset is for isolate and cut"),
        ("cut broker 1", "cut from whom? Say `from` and some of peers"),
        ("cut broker 1 from peers,moon", "'moon' is not one of peers, zookeeper, controller, broker:ID"),
        ("cut broker 1 from peers one-way up", "one-way 'up': expected in"),
        ("cut broker 1 from peers delay 2m", "a delay is at most 60 s"),
        ("cut broker 1 from peers throttle 3", "'3' is no rate"),
        ("cut broker 1 from peers throttle 1bit", "is no rate from 1Kbit"),
    ],
)
def test_words_that_are_refused(text: str, reason: str) -> None:
    with pytest.raises(FaultError, match=re.escape(reason)) as refused:
        parse_words(text)
    assert "\n" not in str(refused.value)


def test_every_word_is_an_action() -> None:
    assert set(ACTIONS) == set(VERBS)
    assert {verb for verb, action in ACTIONS.items() if action.undo is not None} == set(LASTING)


@pytest.mark.parametrize(
    ("text", "role"),
    [
        ("leader of t-1", Role("leader", "t", 1)),
        ("coordinator of g", Role("coordinator", name="g")),
        ("broker 7", Role("broker", broker=7)),
        ("zookeeper", Role("zookeeper")),
    ],
)
def test_roles_in_parts(text: str, role: Role) -> None:
    assert role_of(text) == role


BROKERS = (1, 2, 3)


@pytest.mark.parametrize(
    ("breakage", "victim", "others"),
    [
        (Breakage(), 2, [({"1", "3"}, False), ({"zookeeper"}, False)]),
        (Breakage(("peers",)), 2, [({"1", "3"}, False)]),
        (Breakage(("controller",)), 2, [({"1", "3"}, True)]),
        (Breakage(("broker:3", "zookeeper")), 1, [({"3"}, False), ({"zookeeper"}, False)]),
        (Breakage(), None, [({"1", "2", "3"}, False)]),
    ],
)
def test_whose_links_break(breakage: Breakage, victim: int | None, others: list[tuple[set[str], bool]]) -> None:
    rules = breakage.rules(victim, BROKERS)
    assert [(set(rule.others), rule.only_control) for rule in rules] == others
    assert {rule.of for rule in rules} == {"zookeeper" if victim is None else str(victim)}
    assert {rule.effect for rule in rules} == {CUT}
    assert len({rule.id for rule in rules}) == len(rules)


@pytest.mark.parametrize(
    ("breakage", "victim", "brokers", "reason"),
    [
        (Breakage(("broker:9",)), 1, BROKERS, "the cluster has no broker 9; its brokers are 1, 2, 3"),
        (Breakage(("broker:1",)), 1, BROKERS, "broker 1 has no link to itself"),
        (Breakage(("peers",)), 1, (1,), "broker 1 has no peers"),
        (Breakage(("zookeeper",)), None, BROKERS, "ZooKeeper has no link to zookeeper"),
    ],
)
def test_links_that_do_not_exist(breakage: Breakage, victim: int | None, brokers: tuple[int, ...], reason: str) -> None:
    with pytest.raises(FaultError, match=reason):
        breakage.rules(victim, brokers)
