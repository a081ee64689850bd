"""A set of two files, and a web server that has it or something else."""

import gzip
import hashlib
import io
import tarfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from cnnkit.data.files import File, Source

ONE, TWO = bytes(range(256)) * 40, b"two" * 5000
WHOLE = {"one": ONE, "two": TWO}


class Web:
    """A web server whose answers a test sets: path -> (status, body, length it announces)."""

    def __init__(self):
        self.answers, self.asked, self.pause = {}, [], 0.0
        web = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                web.asked.append(self.path)
                time.sleep(web.pause)
                status, body, length = web.answers.get(self.path, (404, b"", None))
                self.send_response(status)
                self.send_header("Content-Length", str(len(body) if length is None else length))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def put(self, path, body, status=200, length=None):
        self.answers[f"/{path}"] = (status, body, length)


def file(name, content):
    return File(name, len(content), hashlib.sha256(content).hexdigest())


def pair(*mirrors, **more):
    """A set of two files, each fetched gzipped."""
    return Source(
        "pair", "The Pair", (file("one", ONE), file("two", TWO)), mirrors, (), lambda found: None, **more
    )


def packed(**members):
    """A tar.gz of these members, below a folder."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(f"folder/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def put_pair(home, one=ONE, two=TWO):
    home.mkdir(parents=True, exist_ok=True)
    (home / "one").write_bytes(one)
    (home / "two.gz").write_bytes(gzip.compress(two))


def serve_pair(web, below):
    web.put(f"{below}/one.gz", gzip.compress(ONE))
    web.put(f"{below}/two.gz", gzip.compress(TWO))
    return f"{web.url}{below}/"
