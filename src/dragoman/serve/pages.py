"""The two pages: the translator, and the reference of the API. Neither loads anything from anywhere."""

import base64
import hashlib
import json
import re
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

from fastapi import Response

FIXED = "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


def _policy(html: str) -> str:
    """Allow exactly the scripts and styles that stand in the page, by their hashes."""

    def hashes(tag: str) -> str:
        texts = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts]
        return " ".join(f"'sha256-{digest}'" for digest in digests) or "'none'"

    return f"default-src 'none'; script-src {hashes('script')}; style-src {hashes('style')}; {FIXED}"


@cache
def _page() -> tuple[bytes, str]:
    html = (files("dragoman.serve") / "page.html").read_text("utf-8")
    return html.encode(), _policy(html)


def page() -> Response:
    """Return the page to translate on."""
    html, policy = _page()
    headers = {"Content-Security-Policy": policy, "Cache-Control": "no-cache"}
    return Response(html, media_type="text/html", headers=headers)


def reference(openapi: dict[str, Any]) -> Response:
    """Return the API's description as a page: each path with its fields, answers and an example."""
    sections = "".join(
        _section(path, method, about)
        for path, methods in openapi["paths"].items()
        for method, about in methods.items()
    )
    html = (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><title>API · Dragoman</title>'
        f'<link rel="icon" href="data:,"><style>{STYLE}</style></head><body><main><h1>API</h1>'
        '<p>The shapes are LibreTranslate\'s. <a href="openapi.json">openapi.json</a> describes them for programs, '
        '<a href="./">the page</a> uses them.</p>'
        f"{sections}</main></body></html>"
    )
    return Response(html, media_type="text/html", headers={"Content-Security-Policy": _policy(html)})


def _section(path: str, method: str, about: dict[str, Any]) -> str:
    parts = [f"<h2>{method.upper()} {escape(path)}</h2><p>{escape(about.get('summary', ''))}</p>"]
    kinds = about.get("requestBody", {}).get("content", {})
    body = next((kind["schema"] for kind in kinds.values()), None)  # JSON first, where it can be
    if body:
        rows = "".join(
            f"<tr><td><code>{escape(field)}</code></td>"
            f"<td>{'required' if field in body.get('required', ()) else ''}</td>"
            f"<td>{escape(facts.get('description', ''))}</td></tr>"
            for field, facts in body["properties"].items()
        )
        example = {
            field: facts["examples"][0] for field, facts in body["properties"].items() if "examples" in facts
        }
        if "application/json" in kinds:
            curl = f"curl -H 'Content-Type: application/json' -d '{json.dumps(example)}' SERVER{path}"
        else:
            curl = (
                f"curl -F file=@FILE.txt {' '.join(f'-F {k}={v}' for k, v in example.items())} SERVER{path}"
            )
        parts.append(f"<table>{rows}</table><pre>{escape(curl)}</pre>")
    statuses = ", ".join(escape(status) for status in about["responses"])
    parts.append(f'<p class=quiet>Answers: {statuses}. Every refusal is <code>{{"error": "…"}}</code>.</p>')
    return "".join(parts)


STYLE = (
    ":root{color-scheme:light dark;--quiet:light-dark(#6b7078,#979ca5);--rule:light-dark(#dedbd3,#343840)}"
    "body{margin:0;background:light-dark(#fbfaf7,#16181c);color:light-dark(#22252a,#e4e3df);"
    "font:1rem/1.55 system-ui,sans-serif}main{max-width:48rem;margin:0 auto;padding:2rem 1rem 4rem}"
    "h1,h2{font-family:Charter,Georgia,serif;line-height:1.2}h2{margin-top:2.5rem;font-size:1.25rem}"
    "a{color:light-dark(#2f5f9e,#7fb0ea)}table{border-collapse:collapse;width:100%}"
    "td{padding:.3rem 1rem .3rem 0;border-bottom:1px solid var(--rule);vertical-align:top}"
    "td:nth-child(2),.quiet{color:var(--quiet);font-size:.9rem}"
    "pre{white-space:pre-wrap;overflow-wrap:anywhere;padding:.8rem 1rem;border:1px solid var(--rule);border-radius:6px}"
)
