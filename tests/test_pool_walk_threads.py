"""Work on several things at a time: its results come in order, and its errors where they belong."""

from __future__ import annotations

import pytest

from grace_store.pool.walk import map_ordered


def test_work_done_ahead_keeps_its_order_and_its_errors():
    assert list(map_ordered(lambda i: i * i, range(20), 3)) == [i * i for i in range(20)]

    def fail(i):
        if i == 5:
            raise ValueError("five")
        return i

    results = map_ordered(fail, range(100), 2)
    assert [next(results) for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="five"):
        next(results)


def test_little_is_computed_ahead_of_what_was_taken():
    begun = []

    def note(i):
        begun.append(i)
        return i

    results = map_ordered(note, range(100), 3)
    assert next(results) == 0
    results.close()
    assert len(begun) <= 5


def test_what_is_no_number_of_threads_does_the_work_itself():
    class Backwards:
        def map(self, work, items):
            yield from (work(item) for item in items)

        def share(self, value):
            return lambda: value

    assert list(map_ordered(lambda i: i + 1, range(3), Backwards())) == [1, 2, 3]
