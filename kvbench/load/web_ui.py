"""kvbench in Locust's web UI: a tab with charts and tables, downloads, a start form that fits.

Locust's page is a finished program; what it offers others are tabs with one table. So our tab shows
a page of our own (`web/live.html`) in a frame, which a small script (`web/tab.js`, added to
Locust's page as it is sent) puts there. The page asks for `live.json` every second. Nothing is
fetched from elsewhere, and what comes from workloads and pods enters it as text only.

All is served below Locust's base path and behind its login, if it has them.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flask import Blueprint, Response, request
from gevent.pywsgi import WSGIServer

from kvbench.errors import InputError
from kvbench.load.exposition import CONTENT_TYPE, exposition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kvbench.load.conductor import Conductor
    from kvbench.load.live import Live

_WEB = Path(__file__).parent / "web"
_SCRIPT = '<script src="./kvbench/tab.js" defer></script></body>'
_ENDING = re.compile(rb'("state":\s*)"(?:cleanup|stopping)"')
_FILES = {
    "rows.csv": "text/csv",
    "rows.jsonl": "application/jsonl",
    "manifest.json": "application/json",
}


def attach(environment: Any, conductor: Conductor) -> None:
    """Add our tab, our pages and `/metrics` to Locust's web UI.

    Args:
        environment: Locust's, with a web UI.
        conductor: Of the runs that are shown.
    """
    web = environment.web_ui
    prefix = environment.parsed_options.web_base_path or ""
    pages = Blueprint("kvbench", __name__, url_prefix=prefix or None)

    def route(path: str, answer: Callable[..., Response]) -> None:
        pages.add_url_rule(path, path.replace(".", " "), web.auth_required_if_enabled(answer))

    route("/kvbench/", lambda: _page("live.html", "text/html"))
    route("/kvbench/tab.js", lambda: _page("tab.js", "text/javascript"))
    route("/kvbench/live.json", lambda: _json(conductor.live))
    route("/kvbench/<name>", lambda name: _download(conductor, name))
    route("/metrics", lambda: Response(exposition(conductor.live), content_type=CONTENT_TYPE))
    web.app.register_blueprint(pages)
    web.app.after_request(_with_script)
    web.app.after_request(_never_ending)
    web.template_args["extended_tabs"] = [{"title": "kvbench", "key": "kvbench"}]
    web.template_args["extended_csv_files"] = [
        {"href": f"./kvbench/{name}", "title": f"Download kvbench {name}"} for name in _FILES
    ]


def serve_metrics(address: tuple[str, int], live: Live) -> str:
    """Serve `/metrics` on an address of its own, in a greenlet; return its URL.

    Raises:
        InputError: The address cannot be listened on.
    """

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"] != "/metrics":
            start_response("404 Not Found", [("Content-Type", "text/plain")])
            return [b"/metrics is here\n"]
        start_response("200 OK", [("Content-Type", CONTENT_TYPE)])
        return [exposition(live)]

    server = WSGIServer(address, answer, log=None)
    try:
        server.start()
    except OSError as error:
        raise InputError(
            f"--metrics-port: cannot listen on {address[0]}:{address[1]}: {error.strerror}",
            hint="choose another port; 0 takes a free one",
        ) from error
    return f"http://{address[0]}:{server.server_port}/metrics"


def _page(name: str, kind: str) -> Response:
    return Response((_WEB / name).read_bytes(), content_type=f"{kind}; charset=utf-8")


def _json(live: Live) -> Response:
    return Response(json.dumps(live.snapshot()), content_type="application/json")


def _with_script(response: Response) -> Response:
    """Add our script to Locust's page."""
    if response.mimetype == "text/html" and not response.direct_passthrough:
        page = response.get_data(as_text=True)
        if "window.templateArgs" in page and "graphs-dark" not in page:
            response.set_data(page.replace("</body>", _SCRIPT, 1))
    return response


def _never_ending(response: Response) -> Response:
    """Say "running" while a run ends: at another word Locust's page stops asking, and hangs."""
    if request.path.endswith("/stats/requests") and not response.direct_passthrough:
        response.set_data(_ENDING.sub(rb'\1"running"', response.get_data()))
    return response


def _download(conductor: Conductor, name: str) -> Response:
    """Return a file of the run that is on, or was last: rows of all workers, or its manifest."""
    folder = conductor.folder
    if name not in _FILES or folder is None:
        return Response("there is no run yet\n", status=404, content_type="text/plain")
    try:
        if name == "manifest.json":
            data = folder.manifest_path.read_bytes()
        elif name == "rows.jsonl":
            data = b"".join(path.read_bytes() for path in folder.rows_paths())
        else:
            from kvbench.records.reader import read_frame  # noqa: PLC0415 - 70 MB, only if asked

            data = read_frame(folder)[0].to_csv(index=False).encode()
    except (OSError, InputError) as error:
        return Response(f"{error}\n", status=404, content_type="text/plain")
    response = Response(data, content_type=_FILES[name])
    response.headers["Content-Disposition"] = f'attachment; filename="{folder.id}-{name}"'
    return response
