"""GET /: what there is to ask for."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from web.operations import Operation, operation

PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Homunculus</title>
<style>body{font:16px/1.5 system-ui,sans-serif;margin:3rem auto;max-width:44rem;padding:0 1rem}
td{padding:.15rem 1.5rem .15rem 0;vertical-align:top}code{white-space:nowrap}</style></head>
<body><h1>Homunculus worker</h1><table>
<tr><td><code>GET <a href="/health/live">/health/live</a></code></td><td>whether the process should go on</td></tr>
<tr><td><code>GET <a href="/health/ready">/health/ready</a></code></td><td>takes events, or why not</td></tr>
<tr><td><code>GET <a href="/tables">/tables</a></code></td><td>tables, and this worker's partitions</td></tr>
<tr><td><code>GET /tables/TABLE?prefix=&amp;limit=&amp;after=</code></td><td>values here, by the page</td></tr>
<tr><td><code>GET /tables/TABLE/KEY</code></td><td>one value, from whichever worker holds it</td></tr>
<tr><td><code>GET /tables/TABLE/KEY/watch</code></td><td>what each commit makes of it, as it happens</td></tr>
<tr><td><code>GET <a href="/models">/models</a></code></td><td>what is live here, and what the store holds</td></tr>
<tr><td><code>GET <a href="/metrics">/metrics</a></code></td><td>numbers for Prometheus</td></tr>
<tr><td><code>POST /models/NAME</code></td><td>a control request, e.g. <code>{"active": "2"}</code></td></tr>
<tr><td><code>GET <a href="/openapi.json">/openapi.json</a></code></td><td>all of this for programs</td></tr>
</table><p>With a token: <code>curl -H "Authorization: Bearer $HOMUNCULUS_WEB_TOKEN" ...</code></p></body></html>
"""


class Index:
    """The plain page."""

    def routes(self) -> list[web.RouteDef]:
        """GET /."""
        return [web.get("/", self.page)]

    @operation(Operation(gives=str, media="text/html"))
    async def page(self, request: web.Request) -> web.Response:
        """Lists the routes."""
        return web.Response(text=PAGE, content_type="text/html")
