"""Connects over QUIC, with aioquic: quic_client.py ADDRESS CERTIFICATE.

Prints one line for each attempt, "ATTEMPT: RESULT": the version of QUIC if the server has echoed a
stream, or how the attempt failed.
"""

import asyncio
import os
import socket
import sys

from aioquic.asyncio import QuicConnectionProtocol
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.packet import QuicProtocolVersion

ADDRESS, CERTIFICATE = sys.argv[1:]
VERSION_1, VERSION_2 = QuicProtocolVersion.VERSION_1, QuicProtocolVersion.VERSION_2
# Together longer than three datagrams.
MANY_PROTOCOLS = [f"{number:0200}" for number in range(20)]


class Client(QuicConnectionProtocol):
    """A client whose socket is connected, so that it gets errors of ICMP."""

    def __init__(self, quic):
        super().__init__(quic)
        self.failed = asyncio.get_running_loop().create_future()

    def error_received(self, error):
        if not self.failed.done():
            self.failed.set_result(os.strerror(error.errno))


async def exchange(client):
    await client.wait_connected()
    reader, writer = await client.create_stream()
    writer.write(b"hello")
    writer.write_eof()
    assert await reader.read() == b"hello"
    # The connection has no public way to ask for its version.
    return {VERSION_1: "version 1", VERSION_2: "version 2"}[client._quic._version]


async def attempt(what, name, port=443, first=VERSION_1, versions=None, protocols=()):
    configuration = QuicConfiguration(
        is_client=True,
        server_name=name,
        alpn_protocols=["echo", *protocols],
        original_version=first,
        supported_versions=versions or [first],
    )
    configuration.load_verify_locations(CERTIFICATE)
    quic = QuicConnection(configuration=configuration)
    loop = asyncio.get_running_loop()
    remote = (ADDRESS, port)
    transport, client = await loop.create_datagram_endpoint(lambda: Client(quic), remote_addr=remote)
    client.connect(remote)
    tasks = [asyncio.ensure_future(exchange(client)), client.failed]
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    print(f"{what}: {done.pop().result()}", flush=True)
    tasks[0].cancel()
    client.close()
    transport.close()


async def main():
    await attempt("name that was not asked for", "index.example")
    socket.gethostbyname("index.example")
    await attempt("name", "index.example")
    await attempt("version 2", "index.example", first=VERSION_2)
    await attempt("change of version", "index.example", versions=[VERSION_2, VERSION_1])
    await attempt("retry", "index.example", port=8443)
    await attempt("long hello", "index.example", protocols=MANY_PROTOCOLS)
    await attempt("long hello of version 2", "index.example", first=VERSION_2, protocols=MANY_PROTOCOLS)
    await attempt("long hello and retry", "index.example", port=8443, protocols=MANY_PROTOCOLS)
    await attempt("other name", "other.example")
    await attempt("other name, version 2", "other.example", first=VERSION_2)
    await attempt("other name in a long hello", "other.example", protocols=MANY_PROTOCOLS)
    await attempt("no name", None)
    await attempt("other port", "index.example", port=8444)


asyncio.run(main())
