"""Requests that may take long are decoded, served and answered in steps, with other requests in between (NET-4).

A handler gives its steps to one of these functions. If they take no longer than a slice, they run at once, as for most requests.
Otherwise the rest shares the loop's time with all other long answers (`long_answers.py`).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from broker.network.request_channel import Request
from broker.requests.context import ApiContext
from broker.requests.long_answers import AnySteps, Asked, Unwanted, Work
from broker.requests.request_time import RequestTime, measured
from protocol.errors import KafkaError
from protocol.kafka import messages
from protocol.kafka.by_schema import AnswerTooLarge
from protocol.kafka.framing import MalformedRequest
from protocol.types import TopicPartition

log = logging.getLogger(__name__)

ROWS_IN_A_STEP = 500
JOINED_MAX = 64 * 1024
"""Limit in bytes for a body that is copied behind its header. A larger body is sent without a copy."""

OWN_ERROR = "an error inside the broker"
REFUSALS = (MalformedRequest, AnswerTooLarge, Unwanted)
"""Errors that leave a request without an answer and are not the broker's own bugs."""

Item = TypeVar("Item")
Result = TypeVar("Result")
StepsTo = Generator[None, None, Result]
"""Yields after each fraction of a millisecond, so that the loop may pause it. After each pause the state may have changed."""
Body = bytes | Sequence[bytes]
"""A response after its header, whole or in pieces."""
Steps = StepsTo[Body]
ThreadedSteps = Generator[Work | None, Any, Body]
"""Like Steps, but may also yield work for a thread, such as unpacking a large batch. The result is sent into the steps."""
Further = Coroutine[Any, Any, None] | None


def in_steps(context: ApiContext, request: Request, steps: AnySteps) -> Further:
    """Runs the steps that serve the request and answer it. The handler returns the result of this function.

    If the steps return a coroutine, it is awaited after them.
    """
    steps = _measured(request, steps)
    is_done, further = context.long_answers.begin(steps)
    return further if is_done else _go_on(context, request, steps, further)


def respond_in_steps(context: ApiContext, request: Request, steps: ThreadedSteps) -> Further:
    """Like `in_steps`; the steps return the body of the answer."""
    return in_steps(context, request, _responding(request, steps))


def at_once(steps: StepsTo[Result]) -> Result:
    """The result of steps that are few."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: Result = end.value
            return result


async def finished(context: ApiContext, request: Request, steps: Generator[Work | None, Any, Result]) -> Result:
    """Returns the result of the steps, for a handler that awaits. Raises Unwanted if the client has disconnected."""
    steps = _measured(request, steps)
    is_done, value = context.long_answers.begin(steps)
    if not is_done:
        value = await context.long_answers.go_on(_asked(request), steps, value)
    result: Result = value
    return result


def bare(error: KafkaError) -> KafkaError:
    """Removes the traceback, which would keep the local variables of the failed calls in memory."""
    return error.with_traceback(None)


class SharedErrors:
    """Keeps one object for equal errors, because an answer may have 100,000."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, str], KafkaError] = {}

    def shared(self, error: KafkaError | None) -> KafkaError | None:
        """Returns the error, or an equal error that is already stored, without its traceback."""
        return None if error is None else self._known.setdefault((error.code, error.message), bare(error))


async def slice_of_own(context: ApiContext, request: Request) -> None:
    """Waits for its turn. Afterwards the caller may work for a millisecond or two. Raises Unwanted if the client has disconnected."""
    await context.long_answers.slice_of_own(_asked(request))


async def respond_when_finished(context: ApiContext, request: Request, steps: Steps) -> None:
    """Answers with the result of the steps, for a handler that awaits."""
    await finished(context, request, _responding(request, steps))


def respond_later(context: ApiContext, request: Request, steps: Steps) -> None:
    """Like `respond_in_steps`, for a callback. It raises nothing: an error closes only the client's connection."""
    responding = _measured(request, _responding(request, steps))
    try:
        is_done, work = context.long_answers.begin(responding)
    except REFUSALS as error:
        close_for(request, error)
        return
    except Exception:
        # The boundary of the callback.
        log.exception("%s failed", request)
        request.close(OWN_ERROR)
        return
    if not is_done:
        after_steps(context, request, responding, lambda: None, work)


def after_steps(
    context: ApiContext, request: Request, steps: AnySteps, then: Callable[[], None], work: Work | None = None
) -> None:
    """For a callback: calls `then()` when the steps are done, unless they fail or the client disconnects. `work` is from `begin`."""

    def ended(done: asyncio.Future[None]) -> None:
        error = None if done.cancelled() else done.exception()
        if error is not None:
            close_for(request, error)
        elif not done.cancelled():
            then()

    context.long_answers.go_on(_asked(request), steps, work).add_done_callback(ended)


def respond_with(context: ApiContext, request: Request, api_key: int, body: dict[str, Any]) -> None:
    """Like `respond_later`, for an answer that is encoded by its schema. Its arrays may be iterators."""
    respond_later(context, request, messages.encoding(api_key, request.header.api_version, body))


def close_for(request: Request, error: BaseException) -> None:
    """Closes the connection of a request that cannot be answered, with the reason in the log."""
    match error:
        case Unwanted():
            pass
        case MalformedRequest():
            request.close(f"malformed {request}: {error}")
        case AnswerTooLarge():
            request.close(f"the answer to {request} would have more than {messages.ANSWER_BYTES_MAX} bytes")
        case _:
            log.error("%s failed", request, exc_info=error)
            request.close(OWN_ERROR)


async def _go_on(context: ApiContext, request: Request, steps: AnySteps, work: Work | None) -> None:
    try:
        further = await context.long_answers.go_on(_asked(request), steps, work)
    except Unwanted:
        return
    if further is not None:
        await further


def _measured(request: Request, steps: Generator[Any, Any, Result]) -> Generator[Any, Any, Result]:
    """The same steps. Their time counts, if the client has a quota for it."""
    toll = request.toll
    return measured(toll, steps) if isinstance(toll, RequestTime) else steps


def _asked(request: Request) -> Asked:
    return Asked(len(request.frame), lambda: request.connection.is_open)


def _responding(request: Request, steps: ThreadedSteps) -> Generator[Work | None, Any, None]:
    body = yield from steps
    if isinstance(body, bytes):
        body = (body,)
    if len(body) == 1 and len(body[0]) <= JOINED_MAX:
        request.respond_small(body[0])
    else:
        request.respond(body)


def by_topic(answers: Mapping[TopicPartition, Result]) -> StepsTo[dict[str, list[tuple[int, Result]]]]:
    """Topic -> (partition, its answer) for each of its partitions."""
    topics: dict[str, list[tuple[int, Result]]] = {}
    for number, (tp, answer) in enumerate(answers.items(), 1):
        topics.setdefault(tp[0], []).append((tp[1], answer))
        if number % ROWS_IN_A_STEP == 0:
            yield
    return topics


def parts_of(items: Iterable[Result], size: int) -> Iterator[list[Result]]:
    """The items in lists of `size`; one empty list if there are none."""
    left = iter(items)
    part = list(itertools.islice(left, size))
    yield part
    while part := list(itertools.islice(left, size)):
        yield part


def collected(items: Sequence[Item], value_of: Callable[[Item], Result]) -> StepsTo[list[Result]]:
    """The list of `value_of(item)` for each item."""
    values = []
    for number, item in enumerate(items, 1):
        values.append(value_of(item))
        if number % ROWS_IN_A_STEP == 0:
            yield
    return values


def each(items: Sequence[Result], act: Callable[[Result], object], in_a_step: int) -> StepsTo[None]:
    """Calls `act(item)` for each item, with a pause after every `in_a_step` items."""
    for number, item in enumerate(items, 1):
        act(item)
        if number % in_a_step == 0:
            yield
