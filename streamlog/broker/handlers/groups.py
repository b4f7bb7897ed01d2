"""Consumer groups by Kafka's classic protocol: finding the coordinator, and being a member.

Offsets are in `group_offsets`, what administrators ask in `group_admin`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from streamlog.broker import apis
from streamlog.broker.call import Call, Handler, Response
from streamlog.broker.groups.changes import group_code
from streamlog.broker.groups.members import Join, Joined, Synced
from streamlog.broker.handlers import group_admin, group_offsets
from streamlog.broker.kafka_errors import Code, KafkaError
from streamlog.errors import StreamlogError

_GROUP = 0
_ID_FIRST_SINCE = 4
_NO_NAME_SINCE = 7
_SKIP_SINCE = 9
_BATCH_LEAVE_SINCE = 3
_MANY_KEYS_SINCE = 4


async def find_coordinator(call: Call) -> Response:
    """Who serves a group; several of them since version 4."""
    if call.version < _MANY_KEYS_SINCE:
        return _coordinator(call, call.body.key)
    return {"coordinators": [_coordinator(call, key) for key in call.body.coordinator_keys]}


def _coordinator(call: Call, key: str) -> dict[str, Any]:
    code, message = Code.NONE, None
    if getattr(call.body, "key_type", _GROUP) != _GROUP:
        # With another code librdkafka asks again and again until its timeout.
        code = Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        message = (
            "only groups have a coordinator here: transactions and share groups are not served"
        )
    elif not key:
        code = Code.INVALID_GROUP_ID
    elif not call.broker.security.allows(call, "describe", "group", key):
        code = Code.GROUP_AUTHORIZATION_FAILED
    if code is not Code.NONE:
        return {
            "key": key,
            "node_id": -1,
            "host": "",
            "port": -1,
            "error_code": code,
            "error_message": message,
        }
    broker = call.broker.cluster.coordinator_of(key)
    return {"key": key, "node_id": broker.node_id, "host": broker.host, "port": broker.port}


async def join_group(call: Call) -> Response:
    """A member comes, and waits until all have."""
    body = call.body
    try:
        _admit(call, body.group_id)
        settings = call.broker.settings
        session = body.session_timeout.total_seconds()
        if not (
            settings.group_min_session_seconds <= session <= settings.group_max_session_seconds
        ):
            raise KafkaError(Code.INVALID_SESSION_TIMEOUT)
        instance = getattr(body, "group_instance_id", None)
        rebalance = getattr(body, "rebalance_timeout", timedelta()).total_seconds()
        runtime = call.broker.runtime
        wish = Join(
            member=body.member_id,
            new_id=f"{instance or call.client_id}-{runtime.ids.new()}",
            instance=instance,
            client_id=call.client_id,
            host=call.peer.host,
            session=session,
            rebalance=rebalance if rebalance > 0 else session,
            protocol_type=body.protocol_type,
            protocols=tuple((p.name, bytes(p.metadata)) for p in body.protocols),
            id_first=call.version >= _ID_FIRST_SINCE,
            can_skip=call.version >= _SKIP_SINCE,
            at_ms=runtime.clock.time_ms(),
        )
        # Who has an id can only be in a group that there is.
        group = await call.broker.groups.get(body.group_id, create=not wish.member, verify=True)
        if group is None:
            raise KafkaError(Code.UNKNOWN_MEMBER_ID)
        joined = await group.join(wish)
    except StreamlogError as error:
        joined = Joined(code=group_code(error), member=body.member_id)
    return {
        "error_code": joined.code,
        "generation_id": joined.generation,
        "protocol_type": joined.protocol_type,
        "protocol_name": joined.protocol or (None if call.version >= _NO_NAME_SINCE else ""),
        "leader": joined.leader,
        "skip_assignment": joined.skip,
        "member_id": joined.member,
        "members": [
            {"member_id": member, "group_instance_id": instance, "metadata": metadata}
            for member, instance, metadata in joined.members
        ],
    }


async def sync_group(call: Call) -> Response:
    """A member asks for its part, and waits until the leader has brought it."""
    body = call.body
    try:
        _admit(call, body.group_id)
        group = await call.broker.groups.get(body.group_id, create=False)
        if group is None:
            raise KafkaError(Code.UNKNOWN_MEMBER_ID)
        synced = await group.sync(
            member=body.member_id,
            instance=getattr(body, "group_instance_id", None),
            generation=body.generation_id,
            protocol_type=getattr(body, "protocol_type", None),
            protocol=getattr(body, "protocol_name", None),
            assignments={a.member_id: bytes(a.assignment) for a in body.assignments},
        )
    except StreamlogError as error:
        synced = Synced(code=group_code(error))
    return {
        "error_code": synced.code,
        "protocol_type": synced.protocol_type,
        "protocol_name": synced.protocol,
        "assignment": synced.assignment,
    }


async def heartbeat(call: Call) -> Response:
    """A member lives."""
    body = call.body
    try:
        _admit(call, body.group_id)
        group = await call.broker.groups.get(body.group_id, create=False)
        code = Code.UNKNOWN_MEMBER_ID
        if group is not None:
            instance = getattr(body, "group_instance_id", None)
            code = group.heartbeat(body.member_id, instance, body.generation_id)
    except StreamlogError as error:
        code = group_code(error)
    return {"error_code": code}


async def leave_group(call: Call) -> Response:
    """One member goes; since version 3 several, also by their instance ids."""
    body = call.body
    gone: Sequence[tuple[str, str | None]]
    if call.version < _BATCH_LEAVE_SINCE:
        gone = [(body.member_id, None)]
    else:
        gone = [(member.member_id, member.group_instance_id) for member in body.members]
    try:
        _admit(call, body.group_id)
        group = await call.broker.groups.get(body.group_id, create=False)
        codes = [Code.UNKNOWN_MEMBER_ID] * len(gone)
        if group is not None:
            codes = await group.leave(gone)
    except StreamlogError as error:
        return {"error_code": group_code(error)}
    if call.version < _BATCH_LEAVE_SINCE:
        return {"error_code": codes[0]}
    return {
        "members": [
            {"member_id": member, "group_instance_id": instance, "error_code": code}
            for (member, instance), code in zip(gone, codes, strict=True)
        ]
    }


def _admit(call: Call, group: str) -> None:
    if not call.broker.security.allows(call, "read", "group", group):
        raise KafkaError(Code.GROUP_AUTHORIZATION_FAILED)


HANDLERS: dict[int, Handler] = {
    apis.FIND_COORDINATOR: find_coordinator,
    apis.JOIN_GROUP: join_group,
    apis.SYNC_GROUP: sync_group,
    apis.HEARTBEAT: heartbeat,
    apis.LEAVE_GROUP: leave_group,
    **group_offsets.HANDLERS,
    **group_admin.HANDLERS,
}
