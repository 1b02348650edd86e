"""Echo servers and clients over the loops of Python: loops.py server|client|interrupt LOOP ADDRESS."""

import asyncio
import os
import select
import signal
import socket
import sys
import threading
import time

PORT = 7000
BYTES = bytes(range(256)) * 400


def listen(address):
    server = socket.create_server((address, PORT), backlog=16)
    server.setblocking(False)
    return server


class Echo:
    """An echo server over a loop that reports descriptors which are ready."""

    def __init__(self, address, watch, unwatch):
        self.server, self.watch, self.unwatch = listen(address), watch, unwatch
        self.streams, self.unsent = {}, {}
        # A file of the kernel in the same loop.
        self.pipe = os.pipe()
        watch(self.server.fileno(), False)
        watch(self.pipe[0], False)

    def ready(self, fd):
        if fd == self.pipe[0]:
            os.read(fd, 1)
        elif fd == self.server.fileno():
            stream, _ = self.server.accept()
            stream.setblocking(False)
            self.streams[stream.fileno()], self.unsent[stream.fileno()] = stream, b""
            self.watch(stream.fileno(), False)
            os.write(self.pipe[1], b"x")
        else:
            self.move(fd)

    def move(self, fd):
        stream = self.streams[fd]
        try:
            if self.unsent[fd]:
                self.unsent[fd] = self.unsent[fd][stream.send(self.unsent[fd]):]
            else:
                self.unsent[fd] = stream.recv(65536)
                if not self.unsent[fd]:
                    self.unwatch(fd)
                    del self.streams[fd], self.unsent[fd]
                    stream.close()
                    return
            self.watch(fd, bool(self.unsent[fd]))
        except BlockingIOError:
            pass


def serve_select(address):
    reads, writes = set(), set()

    def watch(fd, is_write):
        unwatch(fd)
        (writes if is_write else reads).add(fd)

    def unwatch(fd):
        reads.discard(fd)
        writes.discard(fd)

    echo = Echo(address, watch, unwatch)
    while True:
        for fds in select.select(reads, writes, [])[:2]:
            for fd in fds:
                echo.ready(fd)


def serve_poll(address, poller, read, write):
    known = set()

    def watch(fd, is_write):
        (poller.modify if fd in known else poller.register)(fd, write if is_write else read)
        known.add(fd)

    def unwatch(fd):
        known.discard(fd)
        poller.unregister(fd)

    echo = Echo(address, watch, unwatch)
    while True:
        for fd, _ in poller.poll():
            echo.ready(fd)


async def serve_asyncio(address):
    async def echo(reader, writer):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(echo, address, PORT)
    await server.serve_forever()


def ask(address):
    with socket.create_connection((address, PORT), timeout=10) as stream:
        sender = threading.Thread(target=stream.sendall, args=(BYTES,))
        sender.start()
        got = b""
        while len(got) < len(BYTES):
            part = stream.recv(65536)
            assert part, "the end"
            got += part
        sender.join()
        assert got == BYTES


def ask_threads(address):
    ask(address)
    failed = []

    def one():
        try:
            ask(address)
        except BaseException as error:
            failed.append(error)
            raise

    threads = [threading.Thread(target=one) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


async def ask_asyncio(address):
    async def one():
        reader, writer = await asyncio.open_connection(address, PORT)
        writer.write(BYTES)
        assert await asyncio.wait_for(reader.readexactly(len(BYTES)), 20) == BYTES
        writer.close()
        await writer.wait_closed()

    # A process, whose end the loop reports, too.
    process = await asyncio.create_subprocess_exec("true")
    await asyncio.gather(*[one() for _ in range(5)], process.wait())


class Interrupted(Exception):
    pass


def interrupt(address):
    """A signal whose handler raises an exception ends calls that wait."""

    def handler(number, frame):
        raise Interrupted

    signal.signal(signal.SIGALRM, handler)
    server = socket.create_server((address, PORT))
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind((address, PORT))
    for call in [server.accept, lambda: datagrams.recv(1), lambda: select.select([server], [], [])]:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        begun = time.monotonic()
        try:
            call()
            raise SystemExit("the call returned")
        except Interrupted:
            assert time.monotonic() - begun < 10


def main():
    role, loop, address = sys.argv[1:]
    match role, loop:
        case "server", "select":
            serve_select(address)
        case "server", "poll":
            serve_poll(address, select.poll(), select.POLLIN, select.POLLOUT)
        case "server", "epoll":
            serve_poll(address, select.epoll(), select.EPOLLIN, select.EPOLLOUT)
        case "server", "asyncio":
            asyncio.run(serve_asyncio(address))
        case "client", "threads":
            ask_threads(address)
        case "client", "asyncio":
            asyncio.run(ask_asyncio(address))
        case "interrupt", _:
            interrupt(address)


main()
