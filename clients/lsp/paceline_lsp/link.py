"""The connection to the Paceline server: made when it is first needed, kept, made anew when the
settings change. An editor starts its language servers long before anybody starts a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from paceline_client import ConnectError, connect

if TYPE_CHECKING:
    from paceline_client import Session

RETRY_S = 2.0
"""After a try that failed, further requests fail at once for so long."""

_RECONNECT_DELAYS_S = (0.0, 0.5)


class ServerLink:
    """`run` owns the connection, `session` hands it out."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        self._url = url
        self._api_key = api_key
        self._session: Session | None = None
        self._failure: ConnectError | None = None
        self._retry_at = 0.0
        self._wanted = anyio.Event()
        self._settled = anyio.Event()
        self._changed = anyio.Event()

    async def run(self) -> None:
        """Runs until it is cancelled."""
        while True:
            await self._wanted.wait()
            changed = self._changed
            try:
                async with connect(
                    self._url, api_key=self._api_key, reconnect_delays_s=_RECONNECT_DELAYS_S
                ) as session:
                    if not changed.is_set():
                        self._settle(session, None)
                    await changed.wait()
            except ConnectError as error:
                self._settle(None, error)
            except ValueError as error:  # the address is none
                self._settle(None, ConnectError(self._url, str(error)))
            finally:
                self._session = None

    def change(self, url: str, api_key: str | None) -> None:
        """Another server from now on; what runs on the old connection breaks off."""
        if (url, api_key) == (self._url, self._api_key):
            return
        self._url, self._api_key = url, api_key
        self._session = None
        self._failure = None
        self._changed.set()
        self._changed = anyio.Event()

    async def session(self) -> Session:
        """The session, which reconnects by itself. Raises ConnectError."""
        if self._session is None:
            if self._failure is not None and anyio.current_time() < self._retry_at:
                raise self._failure
            settled = self._settled
            self._wanted.set()
            await settled.wait()
        return self._current()

    def _current(self) -> Session:
        if self._session is None:
            raise self._failure or ConnectError(self._url, "the settings changed meanwhile")
        return self._session

    def _settle(self, session: Session | None, failure: ConnectError | None) -> None:
        self._session, self._failure = session, failure
        self._retry_at = anyio.current_time() + RETRY_S
        self._wanted = anyio.Event()
        self._settled.set()
        self._settled = anyio.Event()
