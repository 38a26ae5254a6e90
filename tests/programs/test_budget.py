"""One account for one request: what was spent, and which limit forbids more."""

import asyncio
import threading
import time

from programs import budget
from programs.budget import Budget


def test_without_limits_nothing_is_exhausted() -> None:
    account = Budget()
    account.count_call()
    account.count_tokens(prompt=10**9, cached=0, completion=10**9)
    assert account.exhausted() is None
    assert account.remaining is None


def test_each_limit_names_itself() -> None:
    assert Budget(seconds=0).exhausted() == "deadline"
    assert Budget(max_lm_calls=0).exhausted() == "budget"
    account = Budget(max_tokens=10)
    account.count_tokens(prompt=6, cached=0, completion=3)
    assert account.exhausted() is None
    account.count_tokens(prompt=0, cached=0, completion=1)
    assert account.exhausted() == "budget"


def test_time_of_overlapping_calls_counts_once() -> None:
    account = Budget()

    def busy() -> None:
        with account.timing("lm"):
            time.sleep(0.15)

    threads = [threading.Thread(target=busy) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 0.14 < account.usage().lm_seconds < 0.4
    assert account.usage().store_seconds == 0.0


def test_a_running_call_is_part_of_a_snapshot_and_differences_add_up() -> None:
    account = Budget()
    with account.timing("store"):
        time.sleep(0.02)
        before = account.usage()
    account.count_call()
    account.count_tokens(prompt=5, cached=2, completion=1)
    since = account.usage(before)
    assert before.store_seconds >= 0.02
    assert (since.lm_calls, since.prompt_tokens, since.cached_tokens, since.completion_tokens) == (1, 5, 2, 1)


def test_the_same_complaint_is_noted_once() -> None:
    account = Budget()
    for message in ("a", "b", "a"):
        account.note(message)
    assert account.degraded == ["a", "b"]


async def test_each_request_has_its_own_account_and_its_tasks_share_it() -> None:
    async def spend(account: Budget) -> None:
        with budget.spending(account):
            await asyncio.gather(*(asyncio.to_thread(lambda: budget.current().count_call()) for _ in range(3)))

    accounts = [Budget() for _ in range(3)]
    await asyncio.gather(*(spend(account) for account in accounts))
    assert [account.usage().lm_calls for account in accounts] == [3, 3, 3]
