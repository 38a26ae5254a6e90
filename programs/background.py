"""One private event loop, in a thread of its own, for all of this process.

Every request to a language model runs on it, so that connection pools, concurrency limits and
cool-downs exist once and need no locks, whichever thread or event loop a user calls from. The
synchronous entry points run the asynchronous ones here; that is why `rag(question=...)` also works
inside a running event loop (a notebook, a web handler).
"""

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_thread: threading.Thread | None = None


def loop() -> asyncio.AbstractEventLoop:
    """The private loop, started at the first call; a forked child gets its own."""
    global _loop, _thread
    with _lock:
        if _loop is None or _thread is None or not _thread.is_alive():
            _loop = asyncio.new_event_loop()
            # Daemon: a process that ends must not wait for a language model that hangs.
            _thread = threading.Thread(target=_loop.run_forever, name="adaptive-rag-io", daemon=True)
            _thread.start()
        return _loop


def _start(coroutine: Coroutine[Any, Any, T], done: Callable[["asyncio.Task[T]"], object]) -> Callable[[], object]:
    """Start `coroutine` there with the caller's context variables; returns what cancels it."""
    target = loop()
    context = contextvars.copy_context()
    tasks: list[asyncio.Task[T]] = []

    def start() -> None:
        task = target.create_task(coroutine, context=context)
        task.add_done_callback(done)
        tasks.append(task)

    def cancel() -> None:
        for task in tasks:
            task.cancel()

    target.call_soon_threadsafe(start)
    return lambda: target.call_soon_threadsafe(cancel)


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run `coroutine` to its end from synchronous code; an interrupt cancels it.

    Raises:
        RuntimeError: Called on the private loop itself, where waiting would never end.
    """
    if threading.current_thread() is _thread:
        coroutine.close()
        raise RuntimeError("a synchronous call inside an asynchronous one: use `await module.acall(...)`")
    result: Future[T] = Future()
    cancel = _start(coroutine, lambda task: _copy(task, result))
    try:
        return result.result()
    except KeyboardInterrupt:
        cancel()
        raise


def start(coroutine: Coroutine[Any, Any, object]) -> None:
    """Start `coroutine` and wait for nothing; its result and its errors go unseen."""
    _start(coroutine, lambda task: task.cancelled() or task.exception())


async def on_loop(coroutine: Coroutine[Any, Any, T]) -> T:
    """Await `coroutine` on the private loop from any loop; cancelling the caller cancels it there."""
    caller = asyncio.get_running_loop()
    if caller is _loop:
        return await coroutine
    result: asyncio.Future[T] = caller.create_future()

    def done(task: "asyncio.Task[T]") -> None:
        # The caller's loop may be gone by then: a user who stopped waiting is no error.
        if not caller.is_closed():
            caller.call_soon_threadsafe(_copy, task, result)

    cancel = _start(coroutine, done)
    try:
        return await result
    except asyncio.CancelledError:
        cancel()
        raise


async def in_thread(call: Callable[[], T]) -> T:
    """Await a blocking `call` in a thread of its own.

    A daemon, unlike the threads of an executor: a process that ends must not wait for a store that
    hangs. Whoever stops waiting leaves the thread to its end.
    """
    caller = asyncio.get_running_loop()
    result: asyncio.Future[T] = caller.create_future()

    def settle(value: T | None, error: BaseException | None) -> None:
        if result.done():
            return
        if error is not None:
            result.set_exception(error)
        else:
            result.set_result(value)  # type: ignore[arg-type]  # there is a value where there is no error

    def work() -> None:
        value: T | None = None
        error: BaseException | None = None
        try:
            value = call()
        except BaseException as raised:  # noqa: BLE001  # handed to the caller
            error = raised
        if not caller.is_closed():
            caller.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=work, name="adaptive-rag-store", daemon=True).start()
    return await result


def _copy(task: "asyncio.Task[T]", result: "Future[T] | asyncio.Future[T]") -> None:
    if result.cancelled():
        return
    if task.cancelled():
        result.set_exception(asyncio.CancelledError())
    elif error := task.exception():
        result.set_exception(error)
    else:
        result.set_result(task.result())
