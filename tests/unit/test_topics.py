"""Topics and their registry: made once, changed by one, deleted for everybody."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pytest

from streamlog import paths
from streamlog.clock import Runtime
from streamlog.errors import (
    InvalidRequestError,
    OutOfRangeError,
    PartitionNotFoundError,
    TopicDeletedError,
    TopicExistsError,
    TopicNotFoundError,
)
from streamlog.log.checkpoints import Checkpointer
from streamlog.log.registry import MAX_AGE, MAX_PARTITIONS
from streamlog.log.topics import Topics
from streamlog.storage.objects import Objects
from streamlog.storage.open import open_objects
from tests.fakes import FakeClock, any_root, fake_runtime
from tests.fault.faulty import AFTER, BEFORE, CONFLICT, Fault, FaultyObjects, Rule, Script, commits
from tests.partitions import Meanwhile, append, columns


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["memory", "disk"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> Objects:
    return open_objects(any_root(request, tmp_path), None, Runtime())


def client(objects: Objects, clock: FakeClock, seed: int = 0) -> Topics:
    return Topics(objects, fake_runtime(seed, clock), Checkpointer(objects))


@pytest.fixture
def topics(objects: Objects, clock: FakeClock) -> Topics:
    return client(objects, clock)


def registry_commits(path: str) -> bool:
    return commits(path) and path.startswith(paths.TOPICS_TABLE)


# making and changing


def test_a_topic_is_what_was_asked_for(topics: Topics) -> None:
    made = topics.create("orders", 4, {"retention.ms": 1000, "cleanup.policy": "compact,delete"})
    assert (made.name, made.partitions, made.incarnation, made.path) == (
        "orders",
        4,
        1,
        "topics/orders",
    )
    assert made.config.to_dict() == {"cleanup.policy": "compact,delete", "retention.ms": "1000"}
    assert topics.get("orders") == made
    assert [info.name for info in topics.list()] == ["orders"]


def test_a_second_of_the_name_is_refused_unless_asked(topics: Topics) -> None:
    first = topics.create("orders", 4)
    with pytest.raises(TopicExistsError, match="exists already, with 4 partitions"):
        topics.create("orders")
    assert topics.create("orders", 9, if_not_exists=True) == first


def test_names_that_differ_by_case_only(tmp_path: Path, clock: FakeClock) -> None:
    disk = client(open_objects(str(tmp_path / "r"), None, Runtime()), clock)
    disk.create("orders")
    with pytest.raises(TopicExistsError, match="upper and lower case"):
        disk.create("Orders")
    bucket = client(open_objects("memory://case", None, Runtime()), clock)
    bucket.create("orders")
    assert bucket.create("Orders").name == "Orders"


@pytest.mark.parametrize("count", [0, -1, MAX_PARTITIONS + 1, True, "4", 1.5, None])
def test_a_number_of_partitions_that_is_none(topics: Topics, count: object) -> None:
    with pytest.raises(InvalidRequestError, match=f"allowed are 1 to {MAX_PARTITIONS}"):
        topics.create("orders", count)  # type: ignore[arg-type]
    assert topics.list(refresh=True) == []


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "a b", "é", "x" * 250, "__internal", None, 7]
)
def test_a_name_that_kafka_refuses(topics: Topics, name: object) -> None:
    with pytest.raises(InvalidRequestError, match="cannot be the name of a topic"):
        topics.create(name)  # type: ignore[arg-type]


def test_a_name_with_a_leading_dot_works(topics: Topics) -> None:
    info = topics.create(".hidden")
    append(topics.partition_log(info, 0), b"x")
    assert topics.describe(".hidden").records == 1
    topics.delete(".hidden")
    assert topics.list(refresh=True) == []


def test_an_unknown_setting_is_answered_with_the_nearest(topics: Topics) -> None:
    with pytest.raises(InvalidRequestError, match=r"did you mean 'retention\.ms'"):
        topics.create("orders", config={"retention.m": 1})
    topics.create("orders")
    with pytest.raises(InvalidRequestError, match=r"did you mean 'retention\.ms'"):
        topics.alter("orders", {"retention_ms": 1})


def test_an_unknown_topic_is_answered_with_the_nearest(topics: Topics) -> None:
    with pytest.raises(TopicNotFoundError, match="no topics yet"):
        topics.get("orders")
    topics.create("orders")
    with pytest.raises(TopicNotFoundError, match="did you mean 'orders'"):
        topics.get("order")
    with pytest.raises(TopicNotFoundError, match="list the topics"):
        topics.alter("zebra", {"retention.ms": 1})
    with pytest.raises(InvalidRequestError, match="a topic's name is a str"):
        topics.get(b"orders")  # type: ignore[arg-type]


def test_settings_are_changed_and_put_back(topics: Topics) -> None:
    topics.create("orders", config={"retention.ms": 1000, "compression.type": "zstd"})
    changed = topics.alter("orders", {"retention.ms": None, "max.message.bytes": 10})
    assert changed.config.to_dict() == {"compression.type": "zstd", "max.message.bytes": "10"}
    version = topics._registry._table.version
    topics.alter("orders", {"max.message.bytes": 10})
    assert topics._registry._table.version == version, "nothing changed, nothing is written"


def test_partitions_grow_and_never_shrink(topics: Topics) -> None:
    topics.create("orders", 2)
    assert topics.add_partitions("orders", 5).partitions == 5
    with pytest.raises(InvalidRequestError, match="can only be added"):
        topics.add_partitions("orders", 3)
    with pytest.raises(PartitionNotFoundError, match="it has 0 to 4"):
        topics.partition_log(topics.get("orders"), 5)
    with pytest.raises(PartitionNotFoundError, match="no partition -1"):
        topics.partition_reader(topics.get("orders"), -1)


def test_others_see_a_change_within_seconds(objects: Objects, clock: FakeClock) -> None:
    mine, theirs = client(objects, clock), client(objects, clock, 1)
    mine.create("orders", 1)
    before = theirs.get("orders")
    mine.add_partitions("orders", 3)
    assert theirs.get("orders") is before, "cached"
    clock.advance(MAX_AGE + 0.1)
    assert theirs.get("orders").partitions == 3
    mine.create("more")
    assert theirs.get("more").partitions == 1, "an unknown name is looked up at once"
    assert theirs.get("orders") is theirs.get("orders", refresh=True), (
        "unchanged rows stay the same"
    )


# races (rule 14)


def test_two_clients_creating_one_topic_at_once_make_one(
    objects: Objects, clock: FakeClock
) -> None:
    other = client(objects, clock, 1)
    race = Meanwhile("put_if_absent", registry_commits, lambda: other.create("orders", 7))
    loser = client(FaultyObjects(objects, race), clock)
    with pytest.raises(TopicExistsError, match="with 7 partitions"):
        loser.create("orders", 1)
    assert race.happened
    assert loser.create("orders", 1, if_not_exists=True).partitions == 7
    assert len(other.list(refresh=True)) == 1


def test_many_threads_creating_the_same_topics(objects: Objects) -> None:
    clients = [Topics(objects, Runtime(), Checkpointer(objects)) for _ in range(4)]
    won: list[str] = []
    failed: list[Exception] = []

    def run(mine: Topics) -> None:
        for number in range(5):
            try:
                won.append(mine.create(f"t{number}").id)
            except TopicExistsError as error:
                failed.append(error)

    threads = [threading.Thread(target=run, args=(mine,)) for mine in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (len(won), len(failed)) == (5, 15)
    assert {info.id for info in clients[0].list(refresh=True)} == set(won)


@pytest.mark.parametrize("fault", [BEFORE, AFTER, CONFLICT])
def test_a_lost_answer_makes_one_topic(objects: Objects, clock: FakeClock, fault: Fault) -> None:
    store = FaultyObjects(objects, Script(Rule("put_if_absent", fault, registry_commits, times=2)))
    made = client(store, clock).create("orders", 3)
    assert [info.id for info in client(objects, clock, 1).list()] == [made.id]


def test_the_registry_is_one_live_file_that_other_engines_read(
    tmp_path: Path, clock: FakeClock
) -> None:
    from deltalake import DeltaTable

    topics = client(open_objects(str(tmp_path / "r"), None, Runtime()), clock)
    for number in range(3):
        topics.create(f"t{number}", number + 1, {"retention.ms": 5})
    topics.delete("t1")
    table = DeltaTable(str(tmp_path / "r" / paths.TOPICS_TABLE))
    rows = table.to_pyarrow_table().to_pylist()
    assert len(table.file_uris()) == 1
    assert [(row["topic"], row["partitions"], row["config"]) for row in rows] == [
        ("t0", 1, '{"retention.ms": "5"}'),
        ("t1", 2, '{"retention.ms": "5"}'),
        ("t2", 3, '{"retention.ms": "5"}'),
    ]
    assert [row["deleted_at"] is None for row in rows] == [True, False, True]


# describing and truncating


def test_describe_tells_what_is_there(topics: Topics) -> None:
    info = topics.create("orders", 3)
    log = topics.partition_log(info, 1)
    append(log, b"a", b"b", b"c")
    append(log, b"d")
    log.truncate(1)
    description = topics.describe("orders")
    parts = description.partitions
    assert [(p.partition, p.start, p.end, p.records, p.files, p.version) for p in parts] == [
        (0, 0, 0, 0, 0, -1),
        (1, 1, 4, 3, 2, 3),
        (2, 0, 0, 0, 0, -1),
    ]
    assert (description.records, description.files) == (3, 2)
    assert description.bytes == parts[1].bytes > 0
    assert "<table>" in description._repr_html_()
    assert "orders" in info._repr_html_()


def test_truncate_says_what_is_allowed(topics: Topics) -> None:
    topics.create("orders")
    append(topics.partition_log(topics.get("orders"), 0), b"a", b"b")
    assert topics.truncate("orders", 0, 1) == 1
    with pytest.raises(OutOfRangeError, match=r"\[1, 2\)"):
        topics.truncate("orders", 0, 3)
    with pytest.raises(InvalidRequestError, match="whole number"):
        topics.truncate("orders", 0, "1")  # type: ignore[arg-type]
    with pytest.raises(PartitionNotFoundError, match="only 0"):
        topics.truncate("orders", 1, 0)
    with pytest.raises(TopicNotFoundError):
        topics.truncate("nope", 0, 0)


# deleting (rule 15)


def test_a_deleted_topic_is_gone_for_who_uses_it(objects: Objects, clock: FakeClock) -> None:
    mine, theirs = client(objects, clock), client(objects, clock, 1)
    info = mine.create("orders", 2)
    log, unused = theirs.partition_log(info, 0), theirs.partition_log(info, 1)
    reader = theirs.partition_reader(info, 0)
    append(log, b"a")
    reader.refresh()
    mine.delete("orders")
    left = [i.path for i in objects.list("topics") if not commits(i.path)]
    assert left == [], "the data is gone, the seals stay"
    for victim in (log, unused):
        with pytest.raises(TopicDeletedError, match="nothing was written"):
            append(victim, b"late")
    with pytest.raises(TopicDeletedError):
        reader.refresh()
    with pytest.raises(TopicNotFoundError):
        mine.describe("orders")
    with pytest.raises(TopicNotFoundError):
        mine.delete("orders")


def test_a_topic_made_again_is_another_one(objects: Objects, clock: FakeClock) -> None:
    topics = client(objects, clock)
    first = topics.create("orders")
    old = topics.partition_log(first, 0)
    append(old, b"old")
    topics.delete("orders")
    second = topics.create("orders")
    assert (second.incarnation, second.path) == (2, "topics/orders~2")
    assert second.id != first.id
    with pytest.raises(TopicDeletedError):
        append(old, b"from the past")
    assert append(topics.partition_log(second, 0), b"new").base_offset == 0
    assert topics.describe("orders").records == 1


def test_a_sleeper_cannot_make_a_partition_of_a_deleted_topic(
    objects: Objects, clock: FakeClock
) -> None:
    """It looked the topic up, slept through the deletion and the purge, and then makes version 0."""
    other = client(objects, clock, 1)
    info = other.create("orders")

    def vanish() -> None:
        other.delete("orders")
        objects.delete_tree("topics/orders")

    nap = Meanwhile(
        "put_if_absent", lambda path: path.startswith("topics/orders") and commits(path), vanish
    )
    sleeper = client(FaultyObjects(objects, nap, clock), clock)
    with pytest.raises(TopicDeletedError):
        append(sleeper.partition_log(info, 0), b"x")
    assert nap.happened


def test_a_partition_nobody_used_is_sealed_too(objects: Objects, clock: FakeClock) -> None:
    """Its first writer looked the topic up before the deletion, and puts version 0 after it."""
    other = client(objects, clock, 1)
    info = other.create("orders")
    race = Meanwhile(
        "put_if_absent",
        lambda path: path.startswith("topics/orders") and commits(path),
        lambda: other.delete("orders"),
    )
    writer = client(FaultyObjects(objects, race), clock).partition_log(info, 0)
    with pytest.raises(TopicDeletedError):
        append(writer, b"x")
    assert race.happened


def test_a_deletion_that_crashed_is_finished_later(objects: Objects, clock: FakeClock) -> None:
    topics = client(objects, clock)
    info = topics.create("orders", 2)
    append(topics.partition_log(info, 0), b"a")

    class Crash:
        def next(self, operation: str, path: str) -> Fault | None:
            if operation == "put_if_absent" and path.startswith("topics/orders"):
                raise KeyboardInterrupt
            return None

    with pytest.raises(KeyboardInterrupt):
        client(FaultyObjects(objects, Crash()), clock, 1).delete("orders")
    topics = client(objects, clock, 2)
    assert topics.list() == [], "deleted for everybody, though files are left"
    topics.purge()
    assert list(objects.list("topics")), "too young: somebody may sleep through it"
    later = Topics(objects, fake_runtime(3, clock), Checkpointer(objects), floor=-1.0)
    later.purge()
    assert list(objects.list("topics")) == []
    assert topics._registry.deleted() == []
    assert topics.create("orders").incarnation == 2, "the counter survives the purge"


def test_a_purge_leaves_young_deletions_alone(objects: Objects) -> None:
    topics = Topics(objects, Runtime(), Checkpointer(objects))
    append(topics.partition_log(topics.create("orders"), 0), b"a")
    topics.delete("orders")
    topics.purge()
    assert [i.path for i in objects.list("topics") if commits(i.path)], (
        "sleepers still need the seal"
    )


# stable producers


def test_epochs_are_taken_once_each(objects: Objects) -> None:
    clients = [Topics(objects, Runtime(), Checkpointer(objects)) for _ in range(4)]
    taken: list[int] = []
    threads = [
        threading.Thread(target=lambda t=mine: taken.extend(t.take_epoch("p/1") for _ in range(5)))
        for mine in clients
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(taken) == list(range(1, 21))
    assert clients[0].take_epoch("p%2F1") == 1, "ids never meet by their file names"


def test_records_of_a_batch_are_columns() -> None:
    batch = columns(b"a", b"b")
    assert len(batch) == 2
    assert batch.value.type == pa.binary()
