"""The private pipe between parent and worker: whole messages, one system call each.

A sequenced-packet socket keeps message boundaries, so that neither side ever holds half a message of a peer that died.
Parent and worker take turns, with at most a few small messages under way: neither blocks on a full buffer. What is too
large for one packet travels as a file that the receiver removes.
"""

from __future__ import annotations

import itertools
import os
import pickle
import select
import socket
from typing import Any

PACKET_BYTES = 64 * 1024
"""Larger messages go through a file: a socket's buffer may be smaller than they are."""

_INLINE, _FILE = b"i", b"f"
_serial = itertools.count()


class Channel:
    """One end of the pipe.

    Args:
        end: the connected socket; owned from now on.
        directory: where files for large messages are made.
    """

    def __init__(self, end: socket.socket, directory: str) -> None:
        self._socket = end
        self._directory = directory

    @classmethod
    def pair(cls, directory: str) -> tuple[Channel, socket.socket]:
        """This end, and the other as a socket to be inherited."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(ours, directory), theirs

    def fileno(self) -> int:
        """The descriptor, for a selector; -1 once closed."""
        return self._socket.fileno()

    def send(self, *messages: Any) -> None:
        """Sends messages as one packet. Raises OSError when the other end is closed."""
        packed = pickle.dumps(messages, pickle.HIGHEST_PROTOCOL)
        if len(packed) < PACKET_BYTES:
            self._socket.send(_INLINE + packed)
            return
        path = f"{self._directory}/message-{os.getpid()}-{next(_serial)}"
        with open(path, "wb") as file:
            file.write(packed)
        self._socket.send(_FILE + path.encode())

    def receive(self, *, wait: bool = True) -> tuple[Any, ...]:
        """The messages of the next packet; without ``wait`` none if there is none.

        Raises:
            EOFError, OSError: the other end is closed.
        """
        try:
            packet = self._socket.recv(PACKET_BYTES + 1, 0 if wait else socket.MSG_DONTWAIT)
        except BlockingIOError:
            return ()
        if not packet:
            raise EOFError
        if packet[:1] == _INLINE:
            messages: tuple[Any, ...] = pickle.loads(memoryview(packet)[1:])
            return messages
        path = packet[1:].decode()
        try:
            with open(path, "rb") as file:
                messages = pickle.load(file)
        finally:
            os.unlink(path)
        return messages

    def has_message(self) -> bool:
        """Whether :meth:`receive` would return, or raise, at once."""
        try:
            return bool(select.select([self._socket], [], [], 0)[0])
        except (OSError, ValueError):
            return False

    def close(self) -> None:
        self._socket.close()
