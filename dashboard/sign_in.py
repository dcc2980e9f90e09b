"""The sign-in form: plain HTML, since it stands before everything else."""

from __future__ import annotations

from html import escape

_FORM = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>eaglefeed: sign in</title>
<style>
:root {{ color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif }}
body {{ max-width: 24rem; margin: 15vh auto 0; padding: 0 1rem }}
input, button {{ font: inherit; width: 100%; padding: .6rem; margin: .3rem 0; box-sizing: border-box }}
.wrong {{ color: light-dark(#b00020, #ff8a80) }}
</style></head><body><main><h1>eaglefeed</h1>{body}</main></body></html>"""

_FIELDS = """<form method="post" action="/login">
<label for="token">Token of this dashboard (EAGLEFEED_DASHBOARD_TOKEN)</label>
<input id="token" name="token" type="password" autocomplete="current-password" required autofocus{wrong}>
{error}<button>Sign in</button></form>"""


def form(has_token: bool, error: str = "") -> str:
    """The page; without a token configured it says how to have one."""
    if not has_token:
        body = (
            "<p>This dashboard was started without a token, so nobody can sign in. "
            "Set EAGLEFEED_DASHBOARD_TOKEN and start it again.</p>"
        )
        return _FORM.format(body=body)
    said = f'<p class="wrong" id="error" role="alert">{escape(error)}</p>' if error else ""
    wrong = ' aria-invalid="true" aria-describedby="error"' if error else ""
    return _FORM.format(body=_FIELDS.format(error=said, wrong=wrong))
