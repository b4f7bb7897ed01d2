"""Which batches of Kafka's producers are written, repeated, or refused: beside a list that remembers all."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from streamlog.log.sequences import BatchMark, Sequences, readable, rows_of

TOP = 2**31


def sequences(*written: tuple[int, int, int, int, int]) -> Sequences:
    found = Sequences(lambda _: None)
    found.write([list(row) for row in written])
    return found


def judged(known: Sequences, *batch: int) -> tuple[str, int | None]:
    (verdict,) = known.judge([BatchMark(*batch)])
    return verdict.judgement, verdict.offset


def test_the_first_batch_of_a_producer_may_begin_anywhere() -> None:
    assert judged(sequences(), 7, 0, 0, 9) == ("next", None)
    assert judged(sequences(), 7, 3, 500, 509) == ("next", None)


def test_the_next_a_repeated_and_a_missing_batch_are_told_apart() -> None:
    known = sequences((7, 0, 0, 9, 100), (7, 0, 10, 14, 200))
    assert judged(known, 7, 0, 15, 20) == ("next", None)
    assert judged(known, 7, 0, 10, 14) == ("duplicate", 200)
    assert judged(known, 7, 0, 0, 9) == ("duplicate", 100)
    assert judged(known, 7, 0, 16, 20) == ("gap", None)
    # Cut otherwise than before: written, but where cannot be told.
    assert judged(known, 7, 0, 0, 4) == ("duplicate", None)
    assert judged(known, 8, 0, 16, 20) == ("next", None)


def test_an_older_epoch_is_fenced_and_a_newer_one_begins_at_zero() -> None:
    known = sequences((7, 4, 0, 9, 100))
    assert judged(known, 7, 3, 10, 11) == ("fenced", None)
    assert judged(known, 7, 5, 0, 3) == ("next", None)
    assert judged(known, 7, 5, 10, 11) == ("gap", None)


def test_sequences_begin_again_after_the_largest() -> None:
    known = sequences((7, 0, TOP - 5, TOP - 1, 100))
    assert judged(known, 7, 0, 0, 3) == ("next", None)
    crossing = sequences((7, 0, TOP - 5, 4, 100))
    assert judged(crossing, 7, 0, 5, 6) == ("next", None)
    assert judged(crossing, 7, 0, TOP - 5, 4) == ("duplicate", 100)
    assert judged(crossing, 7, 0, TOP - 9, TOP - 6) == ("duplicate", None)


def test_only_the_last_five_batches_are_remembered_with_their_place() -> None:
    known = sequences(*[(7, 0, n, n, 100 + n) for n in range(6)])
    assert judged(known, 7, 0, 0, 0) == ("duplicate", None)
    assert judged(known, 7, 0, 1, 1) == ("duplicate", 101)


def test_a_transaction_alone_tells_where_a_producer_stands() -> None:
    known = Sequences(lambda producer: (2, 41) if producer == 7 else None)
    assert judged(known, 7, 2, 42, 50) == ("next", None)
    assert judged(known, 7, 2, 40, 41) == ("duplicate", None)
    assert judged(known, 7, 2, 44, 50) == ("gap", None)
    assert judged(known, 7, 1, 0, 1) == ("fenced", None)


def test_batches_of_one_group_follow_each_other() -> None:
    group = [
        BatchMark(7, 0, 0, 4),
        BatchMark(8, 0, 0, 0),
        BatchMark(7, 0, 5, 9),
        BatchMark(7, 0, 20, 21),
    ]
    found = [verdict.judgement for verdict in sequences().judge(group)]
    assert found == ["next", "next", "next", "gap"]


def test_what_a_commit_says_is_read_back_or_left_alone() -> None:
    rows = rows_of([BatchMark(7, 0, 0, 4, 0), BatchMark(8, 1, 2, 3, 5)], 100)
    assert rows == [[7, 0, 0, 4, 100], [8, 1, 2, 3, 105]]
    assert readable(rows)
    for wrong in (None, {}, [[1, 2]], [["a", 0, 0, 0, 0]], "x"):
        assert not readable(wrong)


@settings(max_examples=200, deadline=None)
@given(
    sends=st.lists(
        st.tuples(st.integers(0, 2), st.integers(1, 4), st.booleans()), min_size=1, max_size=40
    )
)
def test_every_batch_is_written_once_however_often_it_is_sent(
    sends: list[tuple[int, int, bool]],
) -> None:
    """A client that repeats any of its last five batches, lost answers included, beside what was written."""
    known = Sequences(lambda _: None)
    nexts = [0, 0, 0]
    past: list[list[tuple[BatchMark, int]]] = [[], [], []]
    end = 0
    for producer, size, repeat in sends:
        if repeat and past[producer]:
            mark, offset = past[producer][-min(size, len(past[producer]), 5)]
            (verdict,) = known.judge([mark])
            assert (verdict.judgement, verdict.offset) == ("duplicate", offset)
            continue
        first = nexts[producer]
        mark = BatchMark(producer, 0, first, first + size - 1)
        (verdict,) = known.judge([mark])
        assert verdict.judgement == "next"
        known.write(rows_of([mark], end))
        past[producer].append((mark, end))
        nexts[producer] += size
        end += size
