"""A W&B server on the loopback interface, as far as `wandb sync` needs one: it keeps what it is sent."""

import contextlib
import gzip
import json
import threading
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Run:
    about: dict = field(default_factory=dict)  # group, tags and the like
    config: dict = field(default_factory=dict)
    history: dict[int, dict] = field(default_factory=dict)  # rows by line number
    summary: dict = field(default_factory=dict)


class WandbServer(ThreadingHTTPServer):
    """`runs` by id, `uploads` by name."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.address = f"http://127.0.0.1:{self.server_port}"
        self.runs: dict[str, Run] = defaultdict(Run)
        self.uploads: dict[str, bytes] = {}

    def handle_error(self, request, client_address) -> None:
        """The client cuts connections at its end."""

    def answer(self, operation: str, variables: dict) -> dict:
        """To a GraphQL request."""
        name = variables.get("name") or variables.get("run")
        project = {"id": "p", "name": variables["project"], "entity": {"id": "e", "name": "somebody"}}
        is_known = name in self.runs
        run = self.runs[name]
        bucket = {"id": name, "name": name, "project": project, "historyLineCount": len(run.history)}
        if operation == "UpsertBucket":
            run.about |= {key: value for key, value in variables.items() if value}
            run.config |= {key: entry["value"] for key, entry in json.loads(variables["config"]).items()}
            return {"upsertBucket": {"bucket": bucket, "inserted": not is_known}}
        if operation == "RunResumeStatus":
            last = json.dumps([json.dumps(row) for row in [*run.history.values()][-1:]])
            tails = {"historyTail": last, "eventsTail": "[]", "eventsLineCount": 0, "logLineCount": 0}
            state = {"summaryMetrics": json.dumps(run.summary), "config": json.dumps(run.config)}
            return {"model": project | {"bucket": bucket | tails | state if is_known else None}}
        assert operation == "CreateRunFiles", operation
        files = [{"name": file, "uploadUrl": f"{self.address}/{file}"} for file in variables["files"]]
        return {"createRunFiles": {"runID": name, "uploadHeaders": [], "files": files}}

    def stream(self, run: Run, files: dict) -> None:
        """Takes the lines of a run's files."""
        for line in files.get("wandb-summary.json", {}).get("content", ()):
            run.summary = json.loads(line)
        if rows := files.get("wandb-history.jsonl"):
            run.history |= dict(enumerate(map(json.loads, rows["content"]), rows["offset"]))


class _Handler(BaseHTTPRequestHandler):
    server: WandbServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_) -> None:
        pass

    def do_POST(self) -> None:
        request = json.loads(self._body())
        if self.path == "/graphql":
            return self._send({"data": self.server.answer(request["operationName"], request["variables"])})
        *_, run, file_stream = self.path.split("/")
        assert file_stream == "file_stream"
        self.server.stream(self.server.runs[run], request.get("files") or {})
        self._send({})

    def do_PUT(self) -> None:
        self.server.uploads[self.path[1:]] = self._body()
        self._send({})

    def _body(self) -> bytes:
        content = self.rfile.read(int(self.headers["Content-Length"] or 0))
        return gzip.decompress(content) if self.headers["Content-Encoding"] == "gzip" else content

    def _send(self, answer: dict) -> None:
        content = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@contextlib.contextmanager
def wandb_server() -> Iterator[WandbServer]:
    with WandbServer() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()
