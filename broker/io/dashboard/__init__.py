"""The dashboard: one page, which shows `/api/v1` in a browser. Its files are served as they are and
need nothing of any other host.

`app.js` reads events and changes views. `overview.js` (with `graph.js` and `chart.js`), `lists.js`
and `console.js` (with `mqtt.js`, its client) are views; `api.js` asks the broker, `dialog.js` asks
people, `parts.js` makes elements. Texts of clients become text nodes, never HTML, and a
Content-Security-Policy forbids whatever does not come from here.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Final

MODULES: Final = (
    *("api", "app", "chart", "console", "dialog"),
    *("graph", "lists", "mqtt", "overview", "parts"),
)

FILES: Final = {
    "/": ("index.html", "text/html"),
    "/dashboard/style.css": ("style.css", "text/css"),
    **{f"/dashboard/{name}.js": (f"{name}.js", "text/javascript") for name in MODULES},
}
"""Path -> file and its type. They have no secrets: no token is needed for them."""

HEADERS: Final = (
    "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src data:; connect-src 'self' ws: wss:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'\r\n"
    "X-Frame-Options: DENY\r\nReferrer-Policy: no-referrer\r\n"
    "Cross-Origin-Opener-Policy: same-origin\r\nCross-Origin-Resource-Policy: same-origin\r\n"
)
"""Fields of the answers with these files. Connections go to this port, and from the console to
WebSocket listeners."""


@lru_cache(maxsize=len(FILES))
def read_file(path: str) -> tuple[str, str]:
    """Return the type and the text of the file at a path that is in FILES."""
    name, kind = FILES[path]
    return kind, (Path(__file__).parent / name).read_text(encoding="utf-8")
