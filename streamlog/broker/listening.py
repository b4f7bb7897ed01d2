"""Why an address could not be listened on, in words that help."""

from __future__ import annotations

import errno
import socket

from streamlog.errors import InvalidRequestError, StreamlogError, UnavailableError


def cannot_listen(error: OSError, host: str, port: int, option: str) -> StreamlogError:
    """The error for an address of a command line option that the system refused."""
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if error.errno == errno.EADDRINUSE:
        return InvalidRequestError(
            f"cannot listen on {place}: another program listens there. Give another port ({option} "
            f"{place.rpartition(':')[0]}:0 takes a free one), or stop that program"
        )
    if isinstance(error, socket.gaierror) or error.errno in (errno.EADDRNOTAVAIL, errno.EACCES):
        return InvalidRequestError(
            f"cannot listen on {place}: {error.strerror or error}. Give {option} an address of this machine, "
            "such as 127.0.0.1, and a port that this user may open"
        )
    return UnavailableError(f"cannot listen on {place}: {error}")
