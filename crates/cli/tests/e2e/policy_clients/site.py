"""A site over TLS with files and git repositories: site.py ADDRESS CERTIFICATE KEY FOLDER.

It prints the Host of each request. What is below /moved/ is at files.example.
"""

import http.server
import os
import ssl
import subprocess
import sys

ADDRESS, CERTIFICATE, KEY, FOLDER = sys.argv[1:]


class Handler(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, *arguments):
        super().__init__(*arguments, directory=FOLDER)

    def do_GET(self):
        print("host", self.headers["Host"], flush=True)
        if self.path.startswith("/git/"):
            self.git()
        elif self.path.startswith("/moved/"):
            self.send_response(302)
            self.send_header("Location", "https://files.example" + self.path.removeprefix("/moved"))
            self.send_header("Content-Length", "0")
            self.end_headers()
        else:
            super().do_GET()

    do_POST = do_GET

    def git(self):
        """Lets git's own CGI program answer."""
        path, _, query = self.path.removeprefix("/git").partition("?")
        length = self.headers.get("Content-Length", "0")
        environment = {
            "GIT_PROJECT_ROOT": FOLDER,
            "GIT_HTTP_EXPORT_ALL": "1",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            "HOME": FOLDER,
            "PATH": os.environ["PATH"],
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REMOTE_USER": "somebody",
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": length,
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
        }
        body = self.rfile.read(int(length))
        git = subprocess.run(["git", "http-backend"], env=environment, input=body, stdout=subprocess.PIPE, check=True)
        head, _, content = git.stdout.partition(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
        self.send_response(int(fields.pop("Status", "200 OK").split()[0]))
        for name, value in fields.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


class Server(http.server.ThreadingHTTPServer):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE, KEY)

    def finish_request(self, request, client_address):
        # On the connection's own thread: others need not wait for its handshake.
        with self.context.wrap_socket(request, server_side=True) as stream:
            super().finish_request(stream, client_address)


with Server((ADDRESS, 443), Handler) as server:
    print("ready", flush=True)
    server.serve_forever()
