"""Indexes behind an alias: how the live one is found, how one is made, and how it takes the place of another.

Three kinds of names, for a store called `kb_text`:

    kb_text-000007      an index; a rebuild makes the next one
    kb_text             the alias of the live one, for people and for finding it
    kb_text.1f0c9a3e    another alias of the live one, with a digest of its identity: what it was made
                        with. All searches and writes go here, so that a process which does not know
                        yet that the index was made anew with other settings meets an error, and never
                        searches words that were cut otherwise, which would find nothing.

One request makes the aliases point to another index and removes the old one, so there is no moment
without an index, and none with two.
"""

import re
from collections.abc import Mapping
from typing import Any

from programs.errors import StoreLocked, StoreMismatch, StoreUnavailable
from programs.retrieval.elastic_connection import NAME, ElasticIndex
from programs.retrieval.elastic_schema import Design

_ATTEMPTS = 20  # each failure means that another process got through


class ElasticAlias:
    """The indexes of one store. Errors of the client leave as they are.

    Args:
        index: The connection.
        name: The alias.
    """

    def __init__(self, index: ElasticIndex, name: str) -> None:
        self._index = index
        self._client = index.client
        self._writer = index.writer
        self.name = name

    def target(self, design: Design) -> str:
        """The alias for searching and writing an index of this design."""
        return f"{self.name}.{design.fingerprint}"

    @staticmethod
    def unfinished(physical: str) -> str:
        """The alias for writing an index that is not live yet."""
        return f"{physical}.new"

    def live(self) -> tuple[str, Mapping[str, Any]] | None:
        """Name and state of the live index."""
        answer = self._client.options(ignore_status=404).indices.get(index=self.name, features=["aliases", "mappings"])
        if answer.meta.status == 404:
            return None
        [(physical, state)] = list(answer.body.items())[:1]
        if physical == self.name or len(answer.body) > 1:
            raise StoreMismatch(
                f"{self.name!r} is not the alias of one index.",
                store=NAME,
                hint="Another program made it; choose another ADAPTIVE_RAG_STORE_PREFIX.",
            )
        return physical, state

    def superseded(self) -> StoreLocked:
        """The error for an unfinished index that is not there any more."""
        return StoreLocked(
            f"Another rebuild of {self.name!r} was finished, and removed this one.",
            store=NAME,
            hint="Index again, one process at a time.",
        )

    def all(self) -> dict[str, Mapping[str, Any]]:
        """Every index of this store, also unfinished ones: number, and aliases."""
        answer = self._client.options(ignore_status=404).indices.get_alias(index=f"{self.name}-*")
        if answer.meta.status == 404:
            return {}
        ours = re.compile(re.escape(self.name) + r"-\d{6}")
        return {name: state["aliases"] for name, state in answer.body.items() if ours.fullmatch(name)}

    def make(self, design: Design, *, live: bool) -> str:
        """Make the next index and give its name. Where another process made a live one just now, ours is not made."""
        known = self.all()
        if live and (there := self._live_of(known)) is not None:
            return there
        number = max((int(name[-6:]) for name in known), default=0)
        for _ in range(_ATTEMPTS):
            number += 1
            physical = f"{self.name}-{number:06}"
            names = [self.name, self.target(design)] if live else [self.unfinished(physical)]
            answer = self._writer.options(ignore_status=400).indices.create(
                index=physical,
                aliases={name: {} for name in names},
                mappings=design.mappings,
                settings=design.settings,
            )
            if answer.meta.status != 400:
                return physical
            if answer.body["error"].get("type") != "resource_already_exists_exception":
                raise StoreMismatch(
                    f"Elasticsearch cannot make the index {physical!r}: {self._index.reason(answer.body)}", store=NAME
                )
            # Whoever got the number before may have made it live, or begun a rebuild with it.
            if live and (there := self._live_of(self.all())) is not None:
                return there
        raise StoreUnavailable(f"No new index for {self.name!r} can be made.", store=NAME)

    def _live_of(self, known: Mapping[str, Mapping[str, Any]]) -> str | None:
        return next((name for name, aliases in known.items() if self.name in aliases), None)

    def swap(self, physical: str, design: Design) -> None:
        """Make an index the live one, and remove the one before and unfinished ones that are older."""
        names = [self.name, self.target(design)]
        for _ in range(_ATTEMPTS):
            known = self.all()
            if physical not in known:
                raise self.superseded()
            if self.name in known[physical]:
                return
            actions: list[dict[str, Any]] = [self._claim(physical)]
            actions += [{"add": {"index": physical, "alias": name}} for name in names]
            actions += [
                {"remove_index": {"index": name}}
                for name, aliases in known.items()
                if self.name in aliases or name < physical
            ]
            answer = self._writer.options(ignore_status=404).indices.update_aliases(actions=actions)
            if answer.meta.status != 404:
                return
            # An earlier attempt was done although its answer was lost, or another process removed one of them.
        raise StoreUnavailable(f"The index {self.name!r} changes all the time.", store=NAME)

    def abandon(self, physical: str) -> None:
        """Remove an unfinished index, but never one that is live: a swap may be done although its answer was lost."""
        # Two steps, as a swap may even come late; without the alias it fails.
        self._writer.indices.update_aliases(actions=[self._claim(physical)])
        self._writer.indices.delete(index=physical)

    def _claim(self, physical: str) -> dict[str, Any]:
        """The action that only one of a swap and an abandonment can do."""
        return {"remove": {"index": physical, "alias": self.unfinished(physical), "must_exist": True}}
