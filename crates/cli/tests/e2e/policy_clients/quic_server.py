"""Echoes streams over QUIC, with aioquic: quic_server.py ADDRESS CERTIFICATE KEY.

It takes the version that the client prefers (RFC 9368). On port 8443 clients have to prove their
address first (Retry).
"""

import asyncio
import sys

from aioquic.asyncio import serve
from aioquic.quic.configuration import QuicConfiguration

ADDRESS, CERTIFICATE, KEY = sys.argv[1:]


def echo(reader, writer):
    async def answer():
        writer.write(await reader.read())
        writer.write_eof()

    asyncio.ensure_future(answer())


async def main():
    configuration = QuicConfiguration(is_client=False, alpn_protocols=["echo"])
    configuration.load_cert_chain(CERTIFICATE, KEY)
    for port, retry in (443, False), (8443, True):
        await serve(ADDRESS, port, configuration=configuration, stream_handler=echo, retry=retry)
    print("ready", flush=True)
    await asyncio.Event().wait()


asyncio.run(main())
