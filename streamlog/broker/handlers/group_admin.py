"""DescribeGroups, ListGroups and DeleteGroups: what administrators ask about groups.

Groups with embedded members are shown like Kafka's own; only brokers' groups can be changed from here.
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from streamlog.broker import apis
from streamlog.broker.call import Call, Handler, Response
from streamlog.broker.groups import protocol
from streamlog.broker.groups.changes import group_code
from streamlog.broker.groups.coordinator import Coordinator
from streamlog.broker.groups.members import Phase
from streamlog.broker.groups.saved import snapshot_of
from streamlog.broker.kafka_errors import Code, KafkaError
from streamlog.consumer.group.admin import Group
from streamlog.consumer.group.admin import Groups as AllGroups
from streamlog.consumer.group.state import GroupState
from streamlog.consumer.group.store import GroupStore
from streamlog.errors import GroupActiveError, StreamlogError

# Kafka's numbers of what may be done to a group, as bits of an answer.
_OPERATIONS = {"read": 3, "delete": 6, "describe": 8}
_LOOKS = 16


class _View(NamedTuple):
    """A group as administrators see it."""

    state: str
    protocol_type: str
    protocol: str
    members: list[dict[str, Any]]


_DEAD = _View(Phase.DEAD.value, "", "", [])


async def describe_groups(call: Call) -> Response:
    """Groups with their members; one that there is not is dead, not an error."""
    return {"groups": [await _describe(call, group) for group in call.body.groups]}


async def _describe(call: Call, group: str) -> dict[str, Any]:
    try:
        if not call.broker.security.allows(call, "describe", "group", group):
            raise KafkaError(Code.GROUP_AUTHORIZATION_FAILED)
        call.broker.groups.check(group)
        view = await _look(call, group)
    except StreamlogError as error:
        return {"error_code": group_code(error), "group_id": group}
    found: dict[str, Any] = {
        "group_id": group,
        "group_state": view.state,
        "protocol_type": view.protocol_type,
        "protocol_data": view.protocol,
        "members": view.members,
    }
    if getattr(call.body, "include_authorized_operations", False):
        found["authorized_operations"] = sum(
            1 << bit
            for operation, bit in _OPERATIONS.items()
            if call.broker.security.allows(call, operation, "group", group)
        )
    return found


async def _look(call: Call, group: str) -> _View:
    loaded = call.broker.groups.peek(group)
    if loaded is not None and loaded.machine.phase is not Phase.DEAD:
        return _of_loaded(loaded)
    state = await call.broker.run(_store(call, group).state)
    return _of_table(state)


def _of_loaded(group: Coordinator) -> _View:
    machine = group.machine
    stable = machine.phase is Phase.STABLE
    return _View(
        machine.phase.value,
        machine.protocol_type,
        (machine.protocol or "") if stable else "",
        [
            {
                "member_id": member.id,
                "group_instance_id": member.instance,
                "client_id": member.client_id,
                "client_host": f"/{member.host}",
                "member_metadata": member.metadata(machine.protocol) if stable else b"",
                "member_assignment": member.assignment if stable else b"",
            }
            for member in machine.members.values()
        ],
    )


def _of_table(state: GroupState) -> _View:
    if state.deleted or state == GroupState():
        return _DEAD
    if not state.members:
        kind = protocol.CONSUMER if state.kafka is None else state.kafka.protocol_type
        return _View(Phase.EMPTY.value, kind, "", [])
    if state.kafka is not None:
        snapshot = snapshot_of(state)
        return _View(
            Phase.STABLE.value,
            snapshot.protocol_type,
            snapshot.protocol or "",
            [
                {
                    "member_id": member.id,
                    "group_instance_id": member.instance,
                    "client_id": member.client_id,
                    "client_host": f"/{member.host}",
                    "member_metadata": member.metadata,
                    "member_assignment": member.assignment,
                }
                for member in snapshot.members
            ],
        )
    phase = Phase.STABLE if state.target is None else Phase.PREPARING
    return _View(
        phase.value,
        protocol.CONSUMER,
        state.strategy,
        [
            {
                "member_id": member.id,
                "group_instance_id": member.instance,
                "client_id": member.client_id,
                "client_host": f"/{member.host}",
                "member_metadata": protocol.subscription(member.topics),
                "member_assignment": protocol.assignment(state.owned.get(member.id, {})),
            }
            for member in state.members.values()
        ],
    )


async def list_groups(call: Call) -> Response:
    """The groups that this broker coordinates; a client asks every broker."""
    broker = call.broker
    allows = broker.security.allows
    everything = allows(call, "describe", "cluster", "kafka-cluster")
    wanted = {state.lower() for state in getattr(call.body, "states_filter", None) or ()}
    names = await broker.run(AllGroups(broker.topics, broker.runtime).names)
    mine = [
        name
        for name in {*names, *(group.name for group in broker.groups.loaded)}
        if broker.groups.is_mine(name) and (everything or allows(call, "describe", "group", name))
    ]
    room = asyncio.Semaphore(_LOOKS)

    async def look(name: str) -> _View:
        async with room:
            return await _look(call, name)

    views = await asyncio.gather(*(look(name) for name in mine))
    return {
        "groups": [
            {"group_id": name, "protocol_type": view.protocol_type, "group_state": view.state}
            for name, view in sorted(zip(mine, views, strict=True))
            if view is not _DEAD and (not wanted or view.state.lower() in wanted)
        ]
    }


async def delete_groups(call: Call) -> Response:
    """Forgets groups that have no members."""
    results = []
    for group in call.body.groups_names:
        try:
            await _delete(call, group)
            code = Code.NONE
        except GroupActiveError:
            code = Code.NON_EMPTY_GROUP
        except StreamlogError as error:
            code = group_code(error)
        results.append({"group_id": group, "error_code": code})
    return {"results": results}


async def _delete(call: Call, group: str) -> None:
    broker = call.broker
    if not broker.security.allows(call, "delete", "group", group):
        raise KafkaError(Code.GROUP_AUTHORIZATION_FAILED)
    broker.groups.check(group)
    # Members that no broker served for a while have their session timeouts to come back.
    loaded = await broker.groups.get(group, create=False)
    if loaded is not None and loaded.machine.phase is not Phase.EMPTY:
        raise KafkaError(Code.NON_EMPTY_GROUP)
    store = _store(call, group)
    state = await broker.run(store.state)
    if store.version < 0 or state.deleted:
        raise KafkaError(Code.GROUP_ID_NOT_FOUND)
    if state.members:
        raise KafkaError(Code.NON_EMPTY_GROUP)
    await broker.run(Group(group, broker.topics, broker.runtime).delete)
    loaded = broker.groups.peek(group)
    if loaded is not None:
        loaded.end("it was deleted")


def _store(call: Call, group: str) -> GroupStore:
    topics = call.broker.topics
    return GroupStore(group, topics.objects, call.broker.runtime, topics.checkpointer)


HANDLERS: dict[int, Handler] = {
    apis.DESCRIBE_GROUPS: describe_groups,
    apis.LIST_GROUPS: list_groups,
    apis.DELETE_GROUPS: delete_groups,
}
