"""The socket that a server listens on. Standard library only: a port that is taken is found before
anything heavy is imported."""

from __future__ import annotations

import errno
import os
import socket

from paceline.core.errors import ConfigError

BACKLOG = 2048


def bind(host: str, port: int) -> socket.socket:
    """A socket for `serve`, which starts to listen on it; port 0 takes a free one.

    Raises ConfigError in one line when the address cannot be had. Do this before loading a model.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise ConfigError(f"host {host!r} is no address: {error}", field="host") from error
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise _no_port(host, port, error) from error
    return listener


def listen(listener: socket.socket) -> None:
    """Let clients connect.

    Raises ConfigError when another process began to listen there since `bind`.
    """
    try:
        listener.listen(BACKLOG)
    except OSError as error:
        host, port = listener.getsockname()[:2]
        raise _no_port(host, port, error) from error


def _no_port(host: str, port: int, error: OSError) -> ConfigError:
    why = (
        "is in use"
        if error.errno == errno.EADDRINUSE
        else f"cannot be had: {os.strerror(error.errno or 0)}"
    )
    return ConfigError(f"port {port} on {host} {why}", field="port")


def address_of(listener: socket.socket) -> str:
    """The URL that clients connect to."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
