"""One self-contained page from a digest: its template, style and script lie beside this file, nothing is fetched."""

from __future__ import annotations

import html
import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

NAME = "report.html"


def page(content: dict[str, Any] | None, title: str) -> str:
    """The page; ``content`` None: a live one, which asks the server it came from for what happens."""
    parts = files("holdfast.report") / "assets"

    def asset(name: str) -> str:
        return (parts / name).read_text(encoding="utf-8")

    filled = {
        "title": html.escape(title),
        "style": asset("page.css"),
        "script": "\n".join(asset(name) for name in ("charts.js", "topology.js", "page.js")),
        "data": _embedded(content),
        "plain": _plain(content),
    }
    return re.sub("@@([a-z]+)@@", lambda place: filled[place[1]], asset("page.html"))


def write_page(content: dict[str, Any], path: Path) -> None:
    """Put the page in place, whole or not at all."""
    temporary = path.with_name(f".{path.name}.part")
    try:
        temporary.write_text(page(content, f"Holdfast: {content['title']}"), encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _embedded(content: dict[str, Any] | None) -> str:
    """JSON that cannot end the script element it stands in."""
    return json.dumps(content, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _plain(content: dict[str, Any] | None) -> str:
    """For readers without scripts: what happened, as a list."""
    if content is None:
        return "<p>This page needs JavaScript to follow a running job.</p>"
    lines = (
        f"<li>{entry['t']:.1f} s: <b>{html.escape(entry['title'])}</b> {html.escape(entry['detail'])}</li>"
        for entry in content["timeline"]
    )
    short = f"<p><b>{html.escape(content['standing']['text'])}</b></p><p>{html.escape(' '.join(content['short']))}</p>"
    return f"{short}<h2>What happened</h2><ol>{''.join(lines)}</ol>"
