"""Adapt locust's page: polyhead's own fields first, and the server's times beside locust's table."""

import json

from flask import Flask, Response, request
from locust.web import WebUI

from polyhead_load.server_times import ServerTimes

_TAB = "server-times"
_COLUMNS = {
    "name": "Request",
    "requests": "# Answered",
    "latency": "Mean latency (ms)",
    "send_lag": "Sent late (ms)",
    "parse_ns": "Request read (ms)",
    "tokenise_ns": "Tokenised (ms)",
    "queue_ns": "In the queue (ms)",
    "compute_ns": "Computed (ms)",
    "serialise_ns": "Reply written (ms)",
    "rest": "Network and this client (ms)",
}
# locust calls what a locustfile adds "Custom parameters", folds it up and puts it last; so with tabs.
_STYLE = """
form .MuiAccordion-root ~ .MuiAccordion-root {
  order: -1;
  .MuiCollapse-root { height: auto !important; visibility: visible !important; }
  .MuiAccordionSummary-root { pointer-events: none; }
  .MuiAccordionSummary-expandIconWrapper { display: none; }
  .MuiAccordionSummary-content p { font-size: 0; }
  .MuiAccordionSummary-content p::after {
    content: "What to ask polyhead for, and how often"; font-size: 1rem;
  }
}
form + a { display: none !important; }
[role=tablist] > button:not(:first-child, :last-child) { order: 1; }
"""


def adapt(web_ui: WebUI, times: ServerTimes) -> None:
    """Change what the page shows. The form keeps locust's own fields, and works as before."""
    app = web_ui.app
    if not isinstance(app, Flask):
        return
    # Fields in the order of the command line, in which they belong together, not of the alphabet.
    app.jinja_env.policies["json.dumps_kwargs"] = {"sort_keys": False}
    web_ui.template_args |= {
        "extended_tabs": [{"title": "Server's times", "key": _TAB}],
        "extended_tables": [
            {
                "key": _TAB,
                "structure": [
                    {"key": key, "title": title} | ({} if key in {"name", "requests"} else {"round": 2})
                    for key, title in _COLUMNS.items()
                ],
            }
        ],
    }

    @app.after_request
    def extend(response: Response) -> Response:
        if response.status_code != 200 or response.direct_passthrough:
            return response
        if request.endpoint == "locust.index":
            page = response.get_data(as_text=True)
            response.set_data(page.replace("</head>", f"<style>{_STYLE}</style></head>", 1))
        elif request.path.endswith("/stats/requests"):
            known = json.loads(response.get_data())
            known["extended_stats"] = [{"key": _TAB, "data": times.rows()}]
            response.set_data(json.dumps(known))
        return response
