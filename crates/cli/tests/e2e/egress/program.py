"""Tries to get out: prints one line for each attempt, "ATTEMPT: RESULT".

What a server outside echoes is "passed". The others are how an attempt failed.
"""

import errno
import socket
import struct
import subprocess
import sys

RESOLVER = "10.0.2.3"
SECONDS = 30


def vector(size, content):
    return len(content).to_bytes(size, "big") + content


def extension(kind, data):
    return kind.to_bytes(2, "big") + vector(2, data)


def hello(name, hidden=False, records=None):
    """A client's hello of TLS 1.3, in records of at most `records` bytes."""
    extensions = extension(43, b"\x02\x03\x04")
    if name is not None:
        extensions += extension(0, vector(2, b"\0" + vector(2, name.encode())))
    if hidden:
        extensions += extension(0xFE0D, b"\0\0\x01")
    body = b"\x03\x03" + bytes(32) + vector(1, bytes(32)) + vector(2, b"\x13\x01")
    body += vector(1, b"\0") + vector(2, extensions)
    message = b"\x01" + vector(3, body)
    size = records or len(message)
    parts = [message[at : at + size] for at in range(0, len(message), size)]
    return b"".join(b"\x16\x03\x01" + vector(2, part) for part in parts)


def question(name, kind):
    labels = b"".join(vector(1, label.encode()) for label in name.split("."))
    options = b"\0" + struct.pack(">HHIH", 41, 1232, 0, 0)
    return struct.pack(">HHHHHH", 7, 0x100, 1, 0, 0, 1) + labels + b"\0" + struct.pack(">HH", kind, 1) + options


def ask(name, kind=1, server=RESOLVER):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.settimeout(SECONDS)
        udp.connect((server, 53))
        udp.send(question(name, kind))
        answer = udp.recv(4096)
    code = answer[3] & 15
    if code == 5:
        return "refused, blocked" if b"\0\x0f\0" in answer[12:] else "refused"
    keys = ", a key" if b"hidden" in answer else ""
    return f"code {code}, {struct.unpack('>H', answer[6:8])[0]} records{keys}"


def ask_by_tcp(*names):
    """Asks for all names at once, and returns the codes of the answers in the order of names."""
    questions = [bytes([0, number]) + question(name, 1)[2:] for number, name in enumerate(names)]
    with socket.create_connection((RESOLVER, 53), SECONDS) as stream, stream.makefile("rb") as answers:
        stream.sendall(b"".join(vector(2, one) for one in questions))
        told = [answers.read(int.from_bytes(answers.read(2), "big")) for _ in names]
    return " ".join(str(answer[3] & 15) for answer in sorted(told, key=lambda answer: answer[1]))


def tcp(address, port, *parts, seconds=SECONDS):
    """Sends parts one by one, and returns what becomes of them."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as stream:
        stream.settimeout(seconds)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream.connect((address, port))
        for part in parts:
            stream.sendall(part)
        left = sum(len(part) for part in parts)
        while left:
            data = stream.recv(65536)
            if not data:
                return "closed"
            left -= len(data)
        return "passed"


def silence(address, port, data):
    """Link-local addresses are those of another link, so their packets are dropped."""
    return tcp(address, port, data, seconds=1)


def udp(address, port, data):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as datagrams:
        datagrams.settimeout(SECONDS)
        datagrams.connect((address, port))
        datagrams.send(data)
        return "passed" if datagrams.recv(65536) == data else "changed"


def ping(address):
    done = subprocess.run(["ping", "-n", "-c", "1", "-W", "10", address], capture_output=True, text=True)
    if done.returncode == 0:
        return "passed"
    return "prohibited" if "rohibited" in done.stdout or "filtered" in done.stdout else done.stdout


def attempt(what, act, *arguments):
    try:
        result = act(*arguments)
    except ConnectionResetError:
        result = "reset"
    except ConnectionRefusedError:
        result = "refused"
    except PermissionError:
        result = "prohibited"
    except TimeoutError:
        result = "silence"
    except OSError as error:
        is_prohibited = error.errno in (errno.EHOSTUNREACH, errno.EACCES, errno.ENETUNREACH)
        result = "prohibited" if is_prohibited else str(error)
    print(f"{what}: {result}", flush=True)


def request(host, target="/", method="GET"):
    return f"{method} {target} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()


def main():
    outside, outside_v6, host, quic = sys.argv[1:]
    attempt("direct address", tcp, outside, 443, hello("a.example"))
    attempt("name that no rule has", ask, "c.example")
    attempt("name of a resolver", ask, "dns.google")
    attempt("long name", ask, "x" * 60 + "." + "y" * 60 + ".c.example")
    attempt("name with other characters", ask, "a b.example")
    attempt("name below a name", ask, "x.a.example")
    attempt("reverse name", ask, "2.2.0.192.in-addr.arpa", 12)
    attempt("rebinding", ask, "rebind.b.example")
    attempt("text", ask, "a.example", 16)
    attempt("service", ask, "a.example", 65)
    attempt("name", ask, "a.example")
    attempt("address of a name", tcp, outside, 443, hello("a.example"))
    attempt("hello and more", tcp, outside, 443, hello("a.example"), b"\x17\x03\x03\0\x01a")
    attempt("hello in records", tcp, outside, 443, hello("a.example", records=7))
    whole = hello("a.example")
    attempt("hello in segments", tcp, outside, 443, whole[:20], whole[20:60], whole[60:])
    attempt("name of another host", tcp, outside, 443, hello("evil.example"))
    attempt("name that was not asked for", tcp, outside, 443, hello("x.b.example"))
    attempt("no name", tcp, outside, 443, hello(None))
    attempt("hidden name", tcp, outside, 443, hello("a.example", hidden=True))
    second = b"\x14\x03\x03\0\x01\x01" + hello("evil.example")
    attempt("second hello", tcp, outside, 443, whole, second)
    attempt("other protocol", tcp, outside, 443, b"SSH-2.0-x\r\n")
    attempt("request", tcp, outside, 80, request("a.example"))
    attempt("request in segments", tcp, outside, 80, b"GET / HT", b"TP/1.1\r\nHost: a.exa", b"mple\r\n\r\n")
    attempt("host of another", tcp, outside, 80, request("evil.example"))
    attempt("two hosts", tcp, outside, 80, b"GET / HTTP/1.1\r\nHost: a.example\r\nHost: b\r\n\r\n")
    attempt("no host", tcp, outside, 80, b"GET / HTTP/1.0\r\n\r\n")
    attempt("target of another", tcp, outside, 80, request("a.example", "http://evil.example/"))
    attempt("tunnel", tcp, outside, 80, request("evil.example:443", "evil.example:443", "CONNECT"))
    attempt("HTTP/2", tcp, outside, 80, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    attempt("other port", tcp, outside, 8080, hello("a.example"))
    attempt("alias", ask, "alias.b.example")
    attempt("address of an alias", tcp, outside, 443, hello("alias.b.example"))
    attempt("target of an alias", tcp, outside, 443, hello("evil.example"))
    attempt("name without greeting", ask, "git.example")
    attempt("address without greeting", tcp, outside, 22, b"SSH-2.0-x\r\n")
    attempt("network", tcp, outside, 5432, b"hello")
    attempt("network of the host", tcp, host, 5432, b"hello")
    attempt("mapped address", tcp, "::ffff:" + outside, 8080, b"hello")
    attempt("translated address", tcp, "64:ff9b::" + outside, 443, hello("a.example"))
    attempt("IPv6", tcp, outside_v6, 443, hello("a.example"))
    attempt("metadata", silence, "169.254.169.254", 80, request("a.example"))
    attempt("private address", tcp, "192.168.7.7", 443, hello("a.example"))
    attempt("loopback of the host", tcp, "10.0.2.2", 443, hello("a.example"))
    attempt("other resolver", udp, outside, 53, question("c.example", 1))
    attempt("other resolver by TCP", tcp, outside, 53, b"hello")
    attempt("no question by TCP", tcp, RESOLVER, 53, b"hello")
    attempt("questions by TCP", ask_by_tcp, "a.example", "c.example", "rebind.b.example", "a.example")
    attempt("resolver by TLS", tcp, RESOLVER, 853, hello("a.example"))
    attempt("datagrams", udp, outside, 443, b"hello")
    attempt("datagrams to another port", udp, outside, 4433, b"hello")
    attempt("name for QUIC", ask, "example.com")
    attempt("QUIC", udp, outside, 443, bytes.fromhex(quic))
    # The answer is too long for UDP, so the C library asks again over TCP.
    attempt("addresses of a long answer", lambda: len(socket.gethostbyname_ex("many.b.example")[2]))
    attempt("echo", ping, outside)


main()
