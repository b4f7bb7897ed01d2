"""What a coordinator does to its group's table: saves, offset commits, deletions. On a thread.

A change works on a draft and may run several times (another client won the version), so it does the same
each time, and it refuses before it changes anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from streamlog.broker.groups.members import Snapshot
from streamlog.broker.groups.saved import with_snapshot
from streamlog.broker.kafka_errors import Code, KafkaError, code_of
from streamlog.consumer.group.store import Draft, OffsetToCommit
from streamlog.errors import PartitionNotFoundError, StreamlogError, UnavailableError
from streamlog.log.topics import TopicInfo, Topics
from streamlog.model import TopicPartition


@dataclass(frozen=True, slots=True)
class Offset:
    """An offset to commit; with a code, it was refused already."""

    topic: str
    partition: int
    offset: int
    metadata: str
    code: Code = Code.NONE


def save(topics: Topics, snapshot: Snapshot, draft: Draft) -> None:
    """A completed generation, or an empty group."""
    counts = {info.name: info.partitions for info in topics.list()}
    draft.state = with_snapshot(draft.state, snapshot, counts)


def commit(
    topics: Topics, member: str, generation: int, offsets: Sequence[Offset], draft: Draft
) -> list[Code]:
    """Offsets of a member of the generation that the table has; of nobody, if it has no members."""
    state = draft.state
    if not member and generation < 0:
        if state.members:
            raise KafkaError(Code.UNKNOWN_MEMBER_ID)
    elif member not in state.members:
        raise KafkaError(Code.UNKNOWN_MEMBER_ID)
    elif generation != state.generation:
        raise KafkaError(Code.ILLEGAL_GENERATION)
    codes = []
    for item in offsets:
        code = item.code
        if code is Code.NONE:
            try:
                info = find_topic(topics, item.topic, item.partition)
                draft.put(
                    OffsetToCommit(info, item.partition, item.offset, item.metadata), member or None
                )
            except StreamlogError as error:
                code = group_code(error)
        codes.append(code)
    return codes


def forget(subscribed: frozenset[str], tps: Sequence[TopicPartition], draft: Draft) -> list[Code]:
    """Offsets of topics that nobody subscribes to."""
    codes = []
    for tp in tps:
        if tp.topic in subscribed:
            codes.append(Code.GROUP_SUBSCRIBED_TO_TOPIC)
        else:
            found = draft.drop(tp)
            codes.append(Code.NONE if found else Code.UNKNOWN_TOPIC_OR_PARTITION)
    return codes


def find_topic(topics: Topics, name: str, partition: int) -> TopicInfo:
    """A topic that has this partition, looked at again if the partition may have been added since."""
    info = topics.get(name)
    if partition >= info.partitions:
        info = topics.get(name, refresh=True)
    if not 0 <= partition < info.partitions:
        raise PartitionNotFoundError(f"topic {name!r} has no partition {partition}")
    return info


def group_code(error: BaseException) -> Code:
    """The code for a failure of the group's table: members look for the coordinator and try again."""
    if isinstance(error, UnavailableError):
        return Code.COORDINATOR_NOT_AVAILABLE
    return Code(code_of(error))
