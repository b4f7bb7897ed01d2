"""The planners of maintenance, pure: which files are merged, which go, which are compacted by key."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog import paths
from streamlog.compaction.engine import key_jobs
from streamlog.compaction.keys import CleanState, dirty_ratio, marks_after, plan_compaction
from streamlog.compaction.plan import Compact, Merge, Retain, clusters, total_bytes
from streamlog.compaction.retention import plan_retention, records_gone
from streamlog.compaction.segments import FAN_IN, plan_merges
from streamlog.config import TopicConfig
from streamlog.log.commit import CLEAN, TOMBSTONES, TOMBSTONES_AT, Segment

KB = 1 << 10
MB = 1 << 20
NOW = 1_700_000_000_000
HOUR = 3_600_000


def file(
    first: int, last: int, size: int = 2 * KB, age_ms: int = 0, *, measured: bool = True
) -> Segment:
    """A file of streamlog whose youngest record is `age_ms` old."""
    time_us = (NOW - age_ms) * 1000
    name = paths.data_file(first, f"{first:016x}{last:016x}")
    return Segment(name, size, last - first + 1, first, last, time_us, time_us, measured)


def log(*sizes: int, ages: Sequence[int] | None = None) -> list[Segment]:
    """Files of ten records each, side by side; ages in milliseconds."""
    times = ages if ages is not None else [0] * len(sizes)
    return [
        file(10 * at, 10 * at + 9, size, age)
        for at, (size, age) in enumerate(zip(sizes, times, strict=True))
    ]


def groups(merges: Sequence[Merge]) -> list[list[int]]:
    """Merges by the first offsets of their files."""
    return [[segment.first for segment in merge.files] for merge in merges]


# merging


def test_files_of_one_size_wait_until_they_are_enough() -> None:
    assert plan_merges(log(*[2 * KB] * (FAN_IN - 1)), 128 * MB) == []
    merges = plan_merges(log(*[2 * KB] * FAN_IN), 128 * MB)
    assert groups(merges) == [[10 * at for at in range(FAN_IN)]]
    assert merges[0].reason == f"{FAN_IN} small files lie side by side"


def test_the_fan_in_can_be_chosen() -> None:
    assert groups(plan_merges(log(1, 1, 1), 128 * MB, fan_in=3)) == [[0, 10, 20]]
    assert plan_merges(log(1, 1, 1), 128 * MB, fan_in=4) == []


def test_files_that_fill_a_segment_do_not_wait_for_others() -> None:
    merges = plan_merges(log(40 * MB, 50 * MB, 45 * MB), 128 * MB)
    assert groups(merges) == [[0, 10, 20]]
    assert merges[0].reason == "together they fill a segment"


def test_thousands_of_files_become_several_segments_and_a_rest() -> None:
    sizes = [1 * MB] * 300
    merges = plan_merges(log(*sizes), 128 * MB)
    assert [len(merge.files) for merge in merges] == [128, 128, 44]
    assert [merge.reason[:8] for merge in merges] == ["together", "together", "44 small"]


def test_a_large_piece_is_not_rewritten_with_every_few_small_ones() -> None:
    """The tiers: 32 tiny files beside one of 30 MB are merged without it."""
    merges = plan_merges(log(30 * MB, *[2 * KB] * FAN_IN), 128 * MB)
    assert groups(merges) == [[10 * at for at in range(1, FAN_IN + 1)]]


def test_tiny_files_on_both_sides_of_a_large_one_are_not_joined_over_it() -> None:
    sizes = [2 * KB] * FAN_IN + [30 * MB] + [2 * KB] * FAN_IN
    merges = plan_merges(log(*sizes), 128 * MB)
    assert [len(merge.files) for merge in merges] == [FAN_IN, FAN_IN]
    assert all(segment.size == 2 * KB for merge in merges for segment in merge.files)


def test_files_that_something_larger_follows_wait_for_no_more() -> None:
    """Else every large file leaves up to 31 small ones behind for ever."""
    files = log(2 * KB, 2 * KB, 2 * KB, 70 * MB, 3 * MB, 5 * MB, 70 * MB, 2 * KB, 2 * KB)
    assert groups(plan_merges(files, 128 * MB)) == [[0, 10, 20], [40, 50]]
    assert groups(plan_merges(log(2 * KB, 2 * KB, 3 * MB, 2 * KB), 128 * MB)) == [[0, 10]]
    assert plan_merges(log(2 * KB, 70 * MB, 30 * MB, 70 * MB), 128 * MB) == [], "one alone is done"


def test_enough_pieces_of_a_tier_take_the_tiny_ones_between_them_along() -> None:
    merges = plan_merges(log(*[3 * MB, 2 * KB] * FAN_IN), 512 * MB)
    assert len(merges) == 1
    assert len(merges[0].files) == 2 * FAN_IN


@pytest.mark.parametrize("size", [64 * MB, 128 * MB, 500 * MB])
def test_a_file_of_half_a_segment_or_more_is_never_touched(size: int) -> None:
    assert plan_merges(log(*[size] * 100), 128 * MB) == []
    around = log(*[2 * KB] * FAN_IN, size, *[2 * KB] * FAN_IN)
    merges = plan_merges(around, 128 * MB)
    assert [len(merge.files) for merge in merges] == [FAN_IN, FAN_IN]
    assert size not in [segment.size for merge in merges for segment in merge.files]


def test_files_that_overlap_stay_together() -> None:
    """Only all files of a cluster together are in order: one of them alone is no stretch of the log."""
    files = [file(0, 9), file(10, 25), file(15, 30), file(20, 28), file(31, 40)]
    assert plan_merges(files, 128 * MB, fan_in=4) == [], "three pieces, though five files"
    merges = plan_merges(files, 128 * MB, fan_in=3)
    assert groups(merges) == [[0, 10, 15, 20, 31]]
    big = [replace(files[1], size=40 * MB), replace(files[2], size=40 * MB)]
    merges = plan_merges([files[0], *big, *files[4:]], 128 * MB, fan_in=2)
    assert merges == [], "a cluster counts by what it holds in all"


def test_a_file_that_was_never_measured_is_left_alone_and_parts_its_neighbours() -> None:
    unknown = file(30, 39, measured=False)
    files = [*log(1, 1, 1), unknown, file(40, 49), file(50, 59), file(60, 69)]
    assert groups(plan_merges(files, 128 * MB, fan_in=3)) == [[0, 10, 20], [40, 50, 60]]
    assert groups(plan_merges(files, 128 * MB, fan_in=4)) == [[0, 10, 20]]


@pytest.mark.parametrize("target", [14, 1000, 100 * KB])
def test_small_targets_are_targets_too(target: int) -> None:
    assert plan_merges(log(*[target] * 50), target) == []
    assert len(plan_merges(log(*[target // 2 - 1] * 3), target)) == 1
    assert plan_merges(log(*[target // 4] * 3), target) == []


@st.composite
def logs(draw: st.DrawFn) -> list[Segment]:
    """Files in offset order with gaps and overlaps, of all sizes, now and then not measured."""
    files: list[Segment] = []
    at = 0
    sizes = st.one_of(
        st.integers(1, 100 * KB), st.integers(100 * KB, 4 * MB), st.integers(4 * MB, 200 * MB)
    )
    for _ in range(draw(st.integers(0, 80))):
        at += draw(st.sampled_from([1, 1, 1, 5]))
        length = draw(st.sampled_from([1, 1, 1, 7]))
        measured = draw(st.sampled_from([True] * 9 + [False]))
        files.append(file(at, at + length - 1, draw(sizes), measured=measured))
        at += draw(st.sampled_from([0, length - 1, length - 1, length - 1]))
    return files


@given(files=logs(), target=st.sampled_from([1 * MB, 16 * MB, 128 * MB]), fan_in=st.integers(2, 40))
def test_merges_are_disjoint_stretches_of_the_log(
    files: list[Segment], target: int, fan_in: int
) -> None:
    merges = plan_merges(files, target, fan_in)
    place = {segment.path: at for at, segment in enumerate(files)}
    parts = clusters(files)
    whole = {segment.path: part for part in parts for segment in part}
    seen: list[int] = []
    for merge in merges:
        at = [place[segment.path] for segment in merge.files]
        assert at == list(range(at[0], at[-1] + 1)), "side by side, in the log's order"
        seen += at
        assert len(merge.files) > 1
        for segment in merge.files:
            part = whole[segment.path]
            assert total_bytes(part) < max(target // 2, 1), "half a segment is left as it is"
            assert set(part) <= set(merge.files), "what overlaps stays together"
            assert segment.measured
        pieces = len(clusters(merge.files))
        assert pieces > 1
        if total_bytes(merge.files) < target and pieces < fan_in:
            following = parts[parts.index(whole[merge.files[-1].path]) + 1 :]
            largest = max(total_bytes(part) for part in clusters(merge.files))
            assert any(
                total_bytes(part) > largest or not all(segment.measured for segment in part)
                for part in following
            ), "few files are merged only when something larger follows"
        assert total_bytes(merge.files) < 2 * target
    assert seen == sorted(set(seen)), "oldest first, and no file twice"


def merged(files: list[Segment], merges: Sequence[Merge]) -> list[Segment]:
    """The log after merges, as if a merged file had the size of its parts."""
    if not merges:
        return files
    replaced = {segment.path for merge in merges for segment in merge.files}
    new = [
        file(merge.files[0].first, merge.files[-1].last, total_bytes(merge.files))
        for merge in merges
    ]
    left = [segment for segment in files if segment.path not in replaced]
    return sorted([*left, *new], key=lambda segment: segment.first)


def wide(rng: random.Random) -> int:
    return int(2 ** rng.uniform(11, 21))


LOADS: dict[str, tuple[float, int, int, Callable[[random.Random], int]]] = {
    # appends a second, hours, segment.bytes, size of an append
    "50 a second of 2 KB": (50, 4, 128 * MB, lambda rng: 2 * KB),
    "50 a second of 20 KB": (50, 2, 128 * MB, lambda rng: 20 * KB),
    "10 a second of 200 KB": (10, 4, 128 * MB, lambda rng: 200 * KB),
    "1 a second of 2 KB": (1, 72, 128 * MB, lambda rng: 2 * KB),
    "1 a second of 100 KB": (1, 24, 128 * MB, lambda rng: 100 * KB),
    "2 a minute of 5 KB": (1 / 30, 300, 128 * MB, lambda rng: 5 * KB),
    "1 a minute of 20 MB": (1 / 60, 100, 128 * MB, lambda rng: 20 * MB),
    "1 a second, 2 KB to 2 MB": (1, 24, 128 * MB, wide),
    "10 a second, mostly small": (
        10,
        8,
        128 * MB,
        lambda rng: 2 * MB if rng.random() < 0.01 else 3 * KB,
    ),
    "1 a second of 5 KB, now and then 70 MB": (
        1,
        24,
        128 * MB,
        lambda rng: 70 * MB if rng.random() < 0.002 else 5 * KB,
    ),
    "all sizes alike": (0.5, 6, 128 * MB, lambda rng: int(2 ** rng.uniform(11, 27))),
    "small segments": (10, 4, 4 * MB, lambda rng: 2 * KB + rng.randrange(4 * KB)),
}


@pytest.mark.parametrize("name", LOADS)
def test_the_cost_follows_the_new_data_and_small_files_stay_few(name: str) -> None:
    """A long time of appends and a run a minute: each record is written thrice more at most."""
    rate, hours, target, size = LOADS[name]
    rng = random.Random(name)
    files: list[Segment] = []
    end = 0
    appended = written = most = 0
    due = 0.0
    for _ in range(int(hours * 60)):
        due += rate * 60
        while due >= 1:
            due -= 1
            files.append(file(end, end, size(rng)))
            appended += files[-1].size
            end += 1
        merges = plan_merges(files, target)
        written += sum(total_bytes(merge.files) for merge in merges)
        files = merged(files, merges)
        full = sum(segment.size >= target // 2 for segment in files)
        # Between two full files one small one may be left, which is no more than twice as many.
        most = max(most, len(files) - 2 * full)
    assert 0 < written <= 3 * appended
    assert most < 100


def test_a_plan_that_was_carried_out_leaves_nothing_to_plan() -> None:
    rng = random.Random(7)
    files = log(*[int(2 ** rng.uniform(8, 28)) for _ in range(3000)])
    for _ in range(10):
        merges = plan_merges(files, 128 * MB)
        if not merges:
            break
        files = merged(files, merges)
    assert merges == []
    assert [segment.first for segment in files] == sorted(segment.first for segment in files)


# retention


def config(**settings: object) -> TopicConfig:
    return TopicConfig.parse({name.replace("_", "."): value for name, value in settings.items()})


def test_files_whose_youngest_record_is_too_old_go() -> None:
    files = log(1, 1, 1, 1, ages=[3 * HOUR, 2 * HOUR, HOUR, 0])
    plan = plan_retention(files, 0, config(retention_ms=HOUR), NOW)
    assert plan == Retain(20, tuple(files[:2]), f"older than retention.ms={HOUR}")
    assert plan_retention(files, 0, config(retention_ms=3 * HOUR), NOW) is None, (
        "exactly is not over"
    )
    assert plan_retention(files, 0, config(retention_ms=-1), NOW) is None


def test_the_youngest_record_of_a_file_counts_not_the_oldest() -> None:
    mixed = replace(file(0, 9, age_ms=0), min_timestamp_us=0)
    assert plan_retention([mixed, file(10, 19)], 0, config(retention_ms=HOUR), NOW) is None


def test_the_first_file_that_stays_ends_it() -> None:
    """An old record above a young one stays: the log has no holes."""
    files = log(1, 1, 1, 1, ages=[5 * HOUR, 0, 5 * HOUR, 0])
    plan = plan_retention(files, 0, config(retention_ms=HOUR), NOW)
    assert plan is not None
    assert (plan.before, plan.files) == (10, (files[0],))


def test_the_newest_file_never_goes() -> None:
    old = log(1, 1, ages=[9 * HOUR, 9 * HOUR])
    plan = plan_retention(old, 0, config(retention_ms=0, retention_bytes=0), NOW)
    assert plan is not None
    assert (plan.before, plan.files) == (10, (old[0],))
    assert plan_retention(old[1:], 10, config(retention_ms=0, retention_bytes=0), NOW) is None
    assert plan_retention([], 0, config(retention_ms=0), NOW) is None


def test_files_that_overlap_go_together_or_not_at_all() -> None:
    young, old = file(5, 15, age_ms=0), file(0, 9, age_ms=9 * HOUR)
    assert plan_retention([old, young, file(16, 20)], 0, config(retention_ms=HOUR), NOW) is None
    both = [old, replace(young, max_timestamp_us=old.max_timestamp_us), file(16, 20)]
    plan = plan_retention(both, 0, config(retention_ms=HOUR), NOW)
    assert plan is not None
    assert (plan.before, plan.files) == (16, tuple(both[:2]))


def test_files_go_while_the_rest_is_as_large_as_allowed() -> None:
    files = log(100, 100, 100, 100)
    for allowed, gone in [(0, 3), (100, 3), (101, 2), (200, 2), (300, 1), (301, 0), (400, 0)]:
        plan = plan_retention(files, 0, config(retention_bytes=allowed, retention_ms=-1), NOW)
        assert (len(plan.files) if plan else 0) == gone, allowed


def test_both_limits_count_and_both_reasons_are_told() -> None:
    files = log(100, 100, 100, 100, ages=[2 * HOUR, 0, 0, 0])
    plan = plan_retention(files, 0, config(retention_ms=HOUR, retention_bytes=200), NOW)
    assert plan is not None
    assert plan.files == tuple(files[:2])
    assert plan.reason == f"older than retention.ms={HOUR}; beyond retention.bytes=200"


def test_a_topic_that_is_only_compacted_loses_nothing_by_age_or_size() -> None:
    files = log(100, 100, 100, ages=[9 * HOUR] * 3)
    limits = {"retention_ms": HOUR, "retention_bytes": 0}
    assert plan_retention(files, 0, config(cleanup_policy="compact", **limits), NOW) is None
    both = plan_retention(files, 0, config(cleanup_policy="compact,delete", **limits), NOW)
    assert both is not None
    assert both.before == 20


def test_the_log_start_never_goes_back() -> None:
    files = log(1, 1, ages=[9 * HOUR, 0])
    plan = plan_retention(files, 10, config(retention_ms=HOUR), NOW)
    assert plan is not None
    assert plan.before == 10


def test_what_a_group_has_not_read_is_held() -> None:
    files = log(1, 1, 1, ages=[3 * HOUR, 3 * HOUR, 0])
    held = config(retention_ms=HOUR, retention_hold_groups="hold")
    plan = plan_retention(files, 0, held, NOW, {"slow": 15, "quick": 30})
    assert plan is not None
    assert plan.before == 10, "offsets 10 to 19 hold what the group reads next"
    assert plan.note == "more is held for slow"
    plan = plan_retention(files, 0, held, NOW, {"slow": 20})
    assert plan is not None
    assert (plan.before, plan.note) == (20, ""), "all of it was read"
    plan = plan_retention(files, 0, held, NOW, {"slow": 0})
    assert plan is not None
    assert (plan.before, plan.files) == (0, ()), "nothing goes, and it is told why"


def test_a_group_is_waited_for_only_so_long() -> None:
    files = log(1, 1, 1, ages=[3 * HOUR, 2 * HOUR, 0])
    held = config(
        retention_ms=HOUR, retention_hold_groups="hold", retention_hold_max_ms=2 * HOUR - 1
    )
    plan = plan_retention(files, 0, held, NOW, {"slow": 0})
    assert plan is not None
    assert plan.before == 10, "two hours beyond its time is too long, one is not"
    assert plan.note == "unread by slow; more is held for slow"
    plan = plan_retention(
        files, 0, held.updated({"retention.hold.max.ms": 2 * HOUR}), NOW, {"slow": 0}
    )
    assert plan is not None
    assert plan.before == 0


def test_beyond_the_bytes_a_group_is_waited_for_by_the_age_of_records() -> None:
    files = log(100, 100, 100, ages=[2 * HOUR, HOUR, 0])
    held = config(
        retention_bytes=0,
        retention_ms=-1,
        retention_hold_groups="hold",
        retention_hold_max_ms=HOUR,
    )
    plan = plan_retention(files, 0, held, NOW, {"slow": 0})
    assert plan is not None
    assert plan.before == 10


def test_a_warning_holds_nothing_and_none_does_not_even_warn() -> None:
    files = log(1, 1, ages=[2 * HOUR, 0])
    for policy, note in [("warn", "unread by a, b"), ("none", "")]:
        told = config(retention_ms=HOUR, retention_hold_groups=policy)
        plan = plan_retention(files, 0, told, NOW, {"b": 9, "a": 0, "c": 10})
        assert plan is not None
        assert (plan.before, plan.note) == (10, note)


def test_records_gone_counts_what_readers_lose() -> None:
    files = tuple(log(1, 1))
    assert records_gone(Retain(20, files, ""), 0) == 20
    assert records_gone(Retain(20, files, ""), 13) == 7
    assert records_gone(Retain(20, files, ""), 25) == 0


@given(
    ages=st.lists(st.integers(0, 10), max_size=12),
    limit=st.integers(0, 10),
    allowed=st.integers(0, 1200),
    committed=st.integers(0, 130),
    hold=st.sampled_from(["none", "warn", "hold"]),
)
def test_retention_takes_a_prefix_and_all_that_is_lawful(
    ages: list[int], limit: int, allowed: int, committed: int, hold: str
) -> None:
    files = log(*[100] * len(ages), ages=ages)
    rules = config(
        retention_ms=limit, retention_bytes=allowed, retention_hold_groups=hold
    )  # held for a day: longer than anything here is old
    plan = plan_retention(files, 0, rules, NOW, {"g": committed})
    gone = len(plan.files) if plan else 0
    assert not plan or plan.files == tuple(files[:gone])

    def may_go(at: int) -> bool:
        due = ages[at] > limit or 100 * (len(ages) - at - 1) >= allowed
        return due and at < len(ages) - 1 and (hold != "hold" or committed > 10 * at + 9)

    assert all(may_go(at) for at in range(gone))
    assert gone == len(files) or not may_go(gone)


# compaction by key


COMPACT = config(cleanup_policy="compact")


def test_only_compacted_topics_are_compacted() -> None:
    files = log(1, 1)
    assert plan_compaction(files, 0, CleanState(), config(), NOW) is None
    assert plan_compaction(files, 0, CleanState(), COMPACT, NOW) is not None
    both = config(cleanup_policy="compact,delete")
    assert plan_compaction(files, 0, CleanState(), both, NOW) is not None


def test_the_newest_file_is_above_the_horizon() -> None:
    files = log(1, 1, 1)
    plan = plan_compaction(files, 4, CleanState(), COMPACT, NOW)
    assert plan == Compact(tuple(files[:2]), 4, 20, 0, "100% of it is new")
    assert plan_compaction(files[:1], 0, CleanState(), COMPACT, NOW) is None
    assert plan_compaction([], 0, CleanState(), COMPACT, NOW) is None


def test_the_newest_file_with_all_that_overlap_it_is_above_the_horizon() -> None:
    files = [file(0, 9), file(10, 19), file(15, 25)]
    plan = plan_compaction(files, 0, CleanState(), COMPACT, NOW)
    assert plan is not None
    assert (plan.files, plan.horizon) == ((files[0],), 10)


def test_the_horizon_of_files_that_overlap_is_their_highest_offset() -> None:
    files = [file(0, 30), file(10, 19), file(31, 35)]
    plan = plan_compaction(files, 0, CleanState(), COMPACT, NOW)
    assert plan is not None
    assert plan.horizon == 31


def test_a_young_record_ends_the_pass() -> None:
    """Also what is old above it: the last record a key must be known up to the horizon."""
    files = log(1, 1, 1, 1, ages=[2 * HOUR, HOUR - 1, 2 * HOUR, 0])
    lag = config(cleanup_policy="compact", min_compaction_lag_ms=HOUR)
    plan = plan_compaction(files, 0, CleanState(), lag, NOW)
    assert plan is not None
    assert (plan.files, plan.horizon) == ((files[0],), 10)
    plan = plan_compaction(files, 0, CleanState(), lag, NOW + 1)
    assert plan is not None
    assert plan.horizon == 30, "old enough to the millisecond"


def test_without_a_lag_the_future_is_no_obstacle() -> None:
    files = log(1, 1, ages=[-HOUR, 0])
    assert plan_compaction(files, 0, CleanState(), COMPACT, NOW) is not None


def test_a_file_that_was_never_measured_ends_the_pass() -> None:
    files = [file(0, 9), file(10, 19, measured=False), file(20, 29), file(30, 39)]
    plan = plan_compaction(files, 0, CleanState(), COMPACT, NOW)
    assert plan is not None
    assert plan.horizon == 10


@pytest.mark.parametrize(("ratio", "due"), [(0, True), (0.25, True), (0.26, False), (1, False)])
def test_a_pass_is_due_when_enough_is_new(ratio: float, due: bool) -> None:
    files = log(300, 100, 50)
    rules = config(cleanup_policy="compact", min_cleanable_dirty_ratio=ratio)
    assert (plan_compaction(files, 0, CleanState(clean=10), rules, NOW) is not None) == due


def test_nothing_new_is_never_due() -> None:
    rules = config(cleanup_policy="compact", min_cleanable_dirty_ratio=0)
    files = log(100, 100, 100)
    assert plan_compaction(files, 0, CleanState(clean=20), rules, NOW) is None
    assert plan_compaction(files, 0, CleanState(clean=99), rules, NOW) is None


def test_a_file_that_is_partly_clean_counts_in_part() -> None:
    assert dirty_ratio(log(100, 100), 5) == pytest.approx(0.75)
    assert dirty_ratio(log(100, 100), 0) == 1
    assert dirty_ratio(log(100, 100), 20) == 0
    assert dirty_ratio([], 0) == 0


# tombstones: a pass makes clean, time passes, a later pass drops


DAY = 24 * HOUR


def test_tombstones_wait_for_their_time_after_the_pass_that_cleaned_below_them() -> None:
    files = log(1, 1, 1)
    state = CleanState(clean=20, tombstones=20, tombstones_at_ms=NOW - DAY + 1)
    assert plan_compaction(files, 0, state, COMPACT, NOW) is None
    plan = plan_compaction(files, 0, state, COMPACT, NOW + 1)
    assert plan is not None
    assert plan.drop_below == 20
    assert plan.reason == "tombstones are older than delete.retention.ms=86400000"


def test_a_first_pass_drops_no_tombstone() -> None:
    """However old: what it deletes may still be there (rule 17)."""
    rules = config(cleanup_policy="compact", delete_retention_ms=0)
    plan = plan_compaction(log(1, 1, ages=[99 * DAY, 0]), 0, CleanState(), rules, NOW)
    assert plan is not None
    assert plan.drop_below == 0


def test_tombstones_are_dropped_only_below_what_was_clean_then() -> None:
    files = log(1, 1, 1, 1)
    state = CleanState(clean=10, tombstones=10, tombstones_at_ms=NOW - DAY)
    plan = plan_compaction(files, 0, state, COMPACT, NOW)
    assert plan is not None
    assert (plan.horizon, plan.drop_below) == (30, 10)
    odd = CleanState(clean=10, tombstones=25, tombstones_at_ms=NOW - DAY)
    plan = plan_compaction(files, 0, odd, COMPACT, NOW)
    assert plan is not None
    assert plan.drop_below == 10, "never above what a pass has cleaned"
    wide_state = CleanState(clean=40, tombstones=40, tombstones_at_ms=NOW - DAY)
    plan = plan_compaction(files, 0, wide_state, COMPACT, NOW)
    assert plan is not None
    assert plan.drop_below == plan.horizon == 30, "never above what this pass reads"


def a_pass(horizon: int, drop_below: int = 0) -> Compact:
    return Compact((), 0, horizon, drop_below, "")


def test_the_first_pass_opens_a_phase() -> None:
    marks = marks_after(a_pass(20), CleanState(), True, NOW)
    assert marks == {CLEAN: 20, TOMBSTONES: 20, TOMBSTONES_AT: NOW}


def test_a_pass_within_a_phase_leaves_its_time_alone() -> None:
    """Else a busy topic, passed over again and again, would never drop a tombstone."""
    state = CleanState(20, 20, NOW - HOUR)
    assert marks_after(a_pass(30), state, True, NOW) == {CLEAN: 30}


def test_a_pass_that_dropped_opens_the_next_phase_if_tombstones_are_left() -> None:
    state = CleanState(30, 20, NOW - DAY)
    marks = marks_after(a_pass(40, drop_below=20), state, True, NOW)
    assert marks == {CLEAN: 40, TOMBSTONES: 40, TOMBSTONES_AT: NOW}
    marks = marks_after(a_pass(40, drop_below=20), state, False, NOW)
    assert marks == {CLEAN: 40, TOMBSTONES: 0}, "or ends it"


def test_without_tombstones_there_is_no_phase() -> None:
    """Its end would be a pass over all files that drops nothing."""
    assert marks_after(a_pass(20), CleanState(), False, NOW) == {CLEAN: 20}
    state = CleanState(20, 20, NOW - HOUR)
    assert marks_after(a_pass(30), state, False, NOW) == {CLEAN: 30, TOMBSTONES: 0}


def test_what_is_clean_stays_clean() -> None:
    assert marks_after(a_pass(10), CleanState(clean=50), True, NOW)[CLEAN] == 50


def test_groups_for_the_engine_are_stretches_that_keep_overlaps_together() -> None:
    files = [file(0, 9, 60), file(10, 20, 60), file(15, 30, 60), file(31, 40, 60), file(41, 50, 60)]
    jobs = key_jobs("topics/t/0", files, "zstd", 100)
    assert [[s.first for s in job.files] for job in jobs] == [[0, 10, 15], [31, 41]]
    assert {(job.table, job.compression, job.segment_bytes) for job in jobs} == {
        ("topics/t/0", "zstd", 100)
    }


@given(files=logs(), target=st.sampled_from([100 * KB, 16 * MB]))
def test_every_file_is_in_one_group_for_the_engine(files: list[Segment], target: int) -> None:
    jobs = key_jobs("t", files, "none", target)
    assert [segment for job in jobs for segment in job.files] == files
    for before, after in pairwise(jobs):
        reach = max(segment.last for segment in before.files)
        assert reach < after.files[0].first, "no record of one group lies among another's"
