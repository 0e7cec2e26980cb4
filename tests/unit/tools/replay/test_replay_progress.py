"""Running totals of tasks, by datagrams."""

from __future__ import annotations

import socket

from tools.replay.progress import ProgressListener, ProgressSender, TaskProgress


def test_totals_over_all_tasks() -> None:
    with ProgressListener() as listener:
        assert listener.receive(0.0) == TaskProgress(task=-1)
        for task in range(3):
            progress = TaskProgress(task, started=10.0, sent=task, acknowledged=1, read=2)
            sender = ProgressSender(listener.address, progress)
            sender.send(at_once=True)
            sender.send(at_once=True)
        listener.receive(1.0)
        expected = TaskProgress(task=-1, started=10.0, sent=3, acknowledged=3, read=6)
        assert listener.receive(0.0) == expected
        host, _, port = listener.address.rpartition(":")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            for rubbish in (b"", b"\xff", b"{}", b"[1]", b'{"task":1,"other":2}'):
                stranger.sendto(rubbish, (host, int(port)))
        assert listener.receive(0.1) == expected


def test_sends_now_and_then_and_survives_a_listener_that_went() -> None:
    with ProgressListener() as listener:
        sender = ProgressSender(listener.address, TaskProgress(0, read=1))
        sender.send()
        sender.progress.read = 2
        sender.send()  # too soon
        assert listener.receive(1.0).read == 1
    for _ in range(3):
        sender.send(at_once=True)
    ProgressSender(None, TaskProgress(0)).send(at_once=True)
