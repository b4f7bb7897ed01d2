"""The way of one group's changes into its table: one commit at a time, all that waits goes together.

J1  Changes are applied in the order in which they were submitted, and each is answered when the commit
    that holds it is durable. An error of one is its own; the others of its commit go on.
J2  A commit is made only onto a version that has this coordinator's mark. If it has not, the group is
    somebody else's: nothing was changed, everything that waits fails, and so does all that comes after.

For one event loop; what touches storage runs on a thread, one at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from streamlog.broker.kafka_errors import Code, KafkaError
from streamlog.consumer.group.store import Draft, GroupStore
from streamlog.errors import StreamlogError

T = TypeVar("T")
Change = Callable[[Draft], T]


class Run(Protocol):
    """How something that waits for storage is done."""

    def __call__(self, action: Callable[..., T], *args: Any) -> Coroutine[Any, Any, T]: ...


class LostGroupError(KafkaError):
    """Another coordinator, or an embedded member, took the group."""

    def __init__(self, group: str) -> None:
        super().__init__(Code.NOT_COORDINATOR, f"group {group!r} was taken over, or reset")


class Journal:
    """The changes of one group by one coordinator."""

    def __init__(
        self,
        store: GroupStore,
        mark: str,
        run: Run,
        on_lost: Callable[[LostGroupError], None],
        patience: float,
    ) -> None:
        self._store = store
        self._mark = mark
        self._run = run
        self._on_lost = on_lost
        self._patience = patience
        self._waiting: list[tuple[Change[Any], asyncio.Future[Any]]] = []
        self._writing: asyncio.Task[None] | None = None
        self._closed: KafkaError | None = None

    def submit(self, change: Change[T]) -> asyncio.Future[T]:
        """Hands in a change; it may run several times, on a thread, and must be the same each time."""
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        # Whoever asked may be gone when the answer comes.
        answer.add_done_callback(_retrieve)
        if self._closed is not None:
            answer.set_exception(self._closed)
            return answer
        self._waiting.append((change, answer))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write())
        return answer

    def close(self, error: KafkaError) -> None:
        """No more changes; those that wait fail, what is being written is finished."""
        if self._closed is not None:
            return
        self._closed = error
        waiting, self._waiting = self._waiting, []
        for _, answer in waiting:
            if not answer.done():
                answer.set_exception(error)

    async def settle(self) -> None:
        """Until nothing is being written."""
        if self._writing is not None:
            await asyncio.wait([self._writing])

    async def _write(self) -> None:
        batch: list[tuple[Change[Any], asyncio.Future[Any]]] = []
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                results = await self._commit([change for change, _ in batch])
                for (_, answer), result in zip(batch, results, strict=True):
                    if answer.done():
                        continue
                    if isinstance(result, StreamlogError):
                        answer.set_exception(result)
                    else:
                        answer.set_result(result)
        finally:
            self._writing = None
            # Only a defect leaves somebody here; nobody is to wait for ever because of it.
            for _, answer in (*batch, *self._waiting):
                if not answer.done():
                    answer.set_exception(KafkaError(Code.UNKNOWN_SERVER_ERROR))

    async def _commit(self, changes: list[Change[Any]]) -> list[Any]:
        try:
            return await self._run(self._apply, changes)
        except LostGroupError as error:
            self.close(error)
            self._on_lost(error)
            return [error] * len(changes)
        except StreamlogError as error:
            return [error] * len(changes)

    def _apply(self, changes: list[Change[Any]]) -> list[Any]:
        results: list[Any] = []

        def step(draft: Draft) -> None:
            results[:] = apply(self._store.group, self._mark, changes, draft)

        self._store.edit(step, self._patience)
        return results


def apply(group: str, mark: str, changes: Sequence[Change[Any]], draft: Draft) -> list[Any]:
    """J1 and J2 on one draft: what each change returned, or the error it raised. Pure."""
    part = draft.state.kafka
    if part is None or part.mark != mark:
        raise LostGroupError(group)
    results: list[Any] = []
    for change in changes:
        try:
            results.append(change(draft))
        except StreamlogError as error:
            results.append(error)
    return results


def _retrieve(answer: asyncio.Future[Any]) -> None:
    if not answer.cancelled():
        answer.exception()
