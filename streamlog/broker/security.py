"""Who may do what. Without users and rules, everybody may do everything."""

from __future__ import annotations

from streamlog.broker.call import Call


class Security:
    """The gate of a broker."""

    def admit(self, call: Call) -> None:
        """Raises unless the connection may make requests of this kind now."""

    def allows(self, call: Call, operation: str, kind: str, name: str) -> bool:
        """Whether the caller may do `operation` ("read", "write", "create", "delete", "alter", "describe",
        "alter_configs", "describe_configs", "cluster_action", "idempotent_write") on a resource of
        `kind` ("topic", "group", "cluster")."""
        return True
