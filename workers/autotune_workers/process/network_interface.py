"""Which network interface holds an address. gloo guesses by the host's name, and falls back to loopback where that name does not resolve."""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct

_SIOCGIFADDR = 0x8915
"""netdevice(7): the IPv4 address of an interface"""
_ADDRESS = slice(20, 24)
"""of the interface in the answer, a struct ifreq"""


def interface_of(address: str) -> str:
    """The name of the interface that holds this IPv4 address; empty when none does."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # an interface without an address
                answer = fcntl.ioctl(asking, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                if socket.inet_ntoa(answer[_ADDRESS]) == address:
                    return name
    return ""
