"""How a collection of Milvus takes the place of another one.

Not by an alias: a collection that was made before could not get its own name as one. Two renamings, some
milliseconds apart, and a search that falls between them finds the old collection under its other name:

    kb          kb__new                      filling
    kb__old     kb__new                      between the two
    kb__old     kb                           then kb__old is dropped

A process that dies leaves one of these lines, and each has one collection that is whole and is found.
"""

import time
from typing import Any

NEW, OLD = "__new", "__old"
"""Ends of names."""

_SECONDS = 60  # most for one step


def live(client: Any, name: str, timeout: float) -> str | None:
    """The collection to be searched and written; None where there is none.

    Args:
        client: The `MilvusClient`.
        name: As in the settings.
        timeout: Seconds of one request.
    """
    # The first name once more at the end: the renaming may be over when the second one is looked for.
    for candidate in (name, name + OLD, name):
        if client.has_collection(candidate, timeout=timeout):
            return candidate
    return None


def prepare(client: Any, name: str) -> None:
    """Remove what a process that died has left, before a new collection is filled."""
    if not client.has_collection(name, timeout=_SECONDS) and client.has_collection(name + OLD, timeout=_SECONDS):
        client.rename_collection(name + OLD, name, timeout=_SECONDS)
    for rest in (name + OLD, name + NEW):
        client.drop_collection(rest, timeout=_SECONDS)


def swap(client: Any, name: str, grace: float) -> None:
    """Put the new collection in the place of the live one, and drop that after `grace` seconds."""
    if client.has_collection(name, timeout=_SECONDS):
        client.rename_collection(name, name + OLD, timeout=_SECONDS)
    client.rename_collection(name + NEW, name, timeout=_SECONDS)
    # A server answers a search that is under way in a collection that is dropped with no rows at all.
    time.sleep(grace)
    client.drop_collection(name + OLD, timeout=_SECONDS)


def drop(client: Any, name: str) -> None:
    """Remove the collection, and what was left of others."""
    for rest in (name + NEW, name, name + OLD):
        client.drop_collection(rest, timeout=_SECONDS)
