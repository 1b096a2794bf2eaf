"""A real HTTP server on the loopback interface that can interrupt, corrupt, refuse and resume downloads."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Site:
    """The files that are served, and the errors of the server."""

    files: dict[str, bytes]
    address: str = ""
    ranges: bool = True
    break_after: int | None = None
    """Number of bytes after which the first response for each file is interrupted."""
    refuse_agent: str = "Python-urllib"
    refuse: str | tuple[str, ...] | None = None
    """Beginning, or beginnings, of the paths that the server refuses."""
    mute: str | None = None
    """File for which the server closes the connection without a response."""
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    """(path, Range header) of every request."""
    agents: set[str] = field(default_factory=set)
    """User agents of the requests."""

    def url(self, name: str) -> str:
        return f"{self.address}/{name}"


@contextmanager
def serving(files: dict[str, bytes]) -> Iterator[Site]:
    site = Site(files)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name, wanted = self.path.lstrip("/"), self.headers.get("Range")
            site.requests.append((name, wanted))
            site.agents.add(self.headers.get("User-Agent", ""))
            if name == site.mute:
                return
            is_refused = site.refuse is not None and name.startswith(site.refuse)
            if is_refused or site.refuse_agent in self.headers.get("User-Agent", ""):
                self.send_error(403)
            elif name not in site.files:
                self.send_error(404)
            else:
                self._answer(site.files[name], wanted if site.ranges else None)

        def _answer(self, content: bytes, wanted: str | None) -> None:
            start = int(wanted.removeprefix("bytes=").split("-")[0]) if wanted else 0
            if start >= len(content) and wanted:
                self.send_error(416)
                return
            self.send_response(206 if wanted else 200)
            if wanted:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            stop = len(content)
            if site.break_after is not None and start == 0:
                stop = site.break_after
            self.wfile.write(content[start:stop])

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    site.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()
