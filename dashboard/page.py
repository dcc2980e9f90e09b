"""The page: how far, how fast, until when, what is wrong; then the pipeline, dead letters, nodes and charts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import datetime, timezone
from html import escape
from pathlib import Path
from typing import Any

from nicegui import ui

from dashboard import charts, dead_letters, panels, wording
from dashboard.access import Access
from dashboard.dead_letters import DeadLetter
from dashboard.figures import Numbers, Run
from dashboard.watch import POLL_SECONDS, View, Watch
from eaglefeed.errors import UsageError

STYLE = Path(__file__).with_name("style.css")
FAVICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><rect width="16" height="16" rx="3" fill="#0b5cad"/>'
    '<path d="M3 11h2V8H3zm4 0h2V5H7zm4 0h2V3h-2z" fill="#fff"/></svg>'
)
THEMES = {"auto": None, "dark": True, "light": False}
CHART_WINDOWS = {"60": "last hour", "360": "last 6 hours", "1440": "last 24 hours"}
_KEEP_IN_ADDRESS = "const u=new URL(location);u.searchParams.set({name!r},{value!r});history.replaceState(null,'',u)"


def add_page(watch: Watch, access: Access) -> None:
    """Register ``/``; its choices (run, theme) stay in the address, so that it can be bookmarked."""

    @ui.page("/")  # type: ignore[untyped-decorator]
    def progress_page(run: str = "", theme: str = "auto") -> None:
        request = ui.context.client.request
        Page(watch, access, run, theme, access.is_signed_in(request.headers)).build()


class Page:
    """One viewer's page; ``refresh`` puts the watch's last view into it."""

    def __init__(self, watch: Watch, access: Access, run: str, theme: str, may_act: bool) -> None:
        self.watch, self.access, self.run_name, self.may_act = watch, access, run or None, may_act
        self.theme = theme if theme in THEMES else "auto"
        self.chart_minutes = 60
        self._run_options: list[str] = []
        self._shown_dead: tuple[DeadLetter, ...] | None = None
        self._parts: list[tuple[Any, Callable[[Numbers, Run], str]]] = []
        self._charts: list[tuple[Any, Callable[[Numbers, Run], dict[str, Any]], Callable[[Numbers, Run], str]]] = []

    def build(self) -> None:
        ui.add_head_html(f"<style>{STYLE.read_text('utf-8')}</style>")
        self.dark = ui.dark_mode(THEMES[self.theme])
        with ui.element("div").classes("page"):
            self._header()
            with ui.element("div") as main:  # NiceGUI's own page element is the <main>
                self.state = ui.html("", sanitize=False).classes("state").props("role=status aria-live=polite")
                self.nothing = ui.html(panels.NOTHING_YET, sanitize=False, tag="section").classes("card")
                with ui.element("div") as self.body:
                    self._body()
        ui.skip_link(target=main)
        self.refresh()
        ui.timer(POLL_SECONDS, self.refresh)

    def _header(self) -> None:
        with ui.element("header").classes("top"):
            ui.html("eaglefeed", sanitize=False, tag="h1")
            self.run_select = self._select("Run", {}, self._choose_run)
            ui.element("span").classes("spacer")
            self.updated = ui.html("", sanitize=False, tag="span").classes("muted")
            themes = {"auto": "System theme", "dark": "Dark", "light": "Light"}
            self._select("Theme", themes, self._choose_theme, self.theme)
            if self.access.has_token and not self.may_act:
                ui.html("Sign in", sanitize=False, tag="a").classes("action").props("href=/login")

    def _body(self) -> None:
        with ui.element("div").classes("cards"):
            self._panel(lambda numbers, run: panels.how_far(run), "section")
            self._panel(lambda numbers, run: panels.how_fast(run), "section")
            self._panel(lambda numbers, run: panels.until_when(run, _clock(run)), "section")
            self._panel(panels.what_is_wrong, "section")
        ui.element("div").style("height: 12px")
        self._panel(panels.pipeline, "section")
        self.dead_panel = ui.element("section").classes("card").props('aria-label="Dead letters"')
        self._panel(lambda numbers, run: panels.nodes(numbers), "section")
        with ui.element("div").classes("charts-head"):
            ui.html("Over time", sanitize=False, tag="h2")
            self._select("Charts show the", CHART_WINDOWS, self._choose_window, "60")
        with ui.element("div").classes("charts"):
            self._chart(
                "Throughput",
                lambda n, r: charts.throughput(r, n.taken_at, self.chart_minutes),
                lambda n, r: charts.throughput_sentence(r),
            )
            self._chart(
                "Queue depth",
                lambda n, r: charts.queue_depth(n, self.chart_minutes),
                lambda n, r: charts.queue_sentence(n),
            )
            self._chart(
                "Spool", lambda n, r: charts.spool(n, self.chart_minutes), lambda n, r: charts.spool_sentence(n)
            )
            self._chart(
                "Lengths of stored samples", lambda n, r: charts.lengths(r), lambda n, r: charts.lengths_sentence(r)
            )

    def _panel(self, render: Callable[[Numbers, Run], str], tag: str) -> None:
        self._parts.append((ui.html("", sanitize=False, tag=tag).classes("card"), render))

    def _chart(
        self, title: str, options: Callable[[Numbers, Run], dict[str, Any]], sentence: Callable[[Numbers, Run], str]
    ) -> None:
        with ui.element("section").classes("card"):
            ui.html(title, sanitize=False, tag="h2")
            chart = ui.echart({"series": []}, renderer="svg").classes("chart").props("role=img")
        self._charts.append((chart, options, sentence))

    def _select(self, label: str, options: dict[str, str], on_change: Callable[[str], None], value: str = "") -> Any:
        """The browser's own select: a phone shows its own list, and every reader knows it."""
        select = ui.element("select").props(f'aria-label="{label}"')
        select.on("change", lambda event: on_change(str(event.args)), js_handler="(e) => emit(e.target.value)")
        _fill(select, options, value)
        return select

    def _choose_run(self, name: str) -> None:
        self.run_name = name
        ui.run_javascript(_KEEP_IN_ADDRESS.format(name="run", value=name))
        self.refresh()

    def _choose_theme(self, theme: str) -> None:
        if theme in THEMES:
            self.theme = theme
            self.dark.set_value(THEMES[theme])
            ui.run_javascript(_KEEP_IN_ADDRESS.format(name="theme", value=theme))

    def _choose_window(self, minutes: str) -> None:
        if minutes in CHART_WINDOWS:
            self.chart_minutes = int(minutes)
            self.refresh()

    def refresh(self) -> None:
        """Show the last view; elements whose content is the same are not sent again."""
        view = self.watch.view()
        numbers = view.numbers
        run = numbers.run(self.run_name) if numbers else None
        self._show_state(view, run)
        self.run_select.set_visibility(run is not None)
        self.nothing.set_visibility(run is None and not view.error)
        self.body.set_visibility(run is not None)
        if numbers is None or run is None:
            return
        self._show_runs(numbers, run)
        for element, render in self._parts:
            element.set_content(render(numbers, run))
        for chart, options, sentence in self._charts:
            _show_chart(chart, options(numbers, run), sentence(numbers, run))
        self._show_dead(view)

    def _show_state(self, view: View, run: Run | None) -> None:
        kind = "lost" if view.error else run.state if run else "empty"
        self.state.classes(remove="lost empty starting running stalled dead paused cancelled closed done", add=kind)
        sentence = f"{run.name}: {wording.state(run)}" if run else wording.STATE_SENTENCES["empty"]
        self.state.set_content(escape(view.error + "; these are the last numbers" if view.error else sentence))
        if view.numbers:
            seconds = time.time() - view.numbers.taken_at
            self.updated.set_content("live" if seconds < 10 else f"read {wording.age(seconds)} ago")

    def _show_runs(self, numbers: Numbers, run: Run) -> None:
        names = sorted(found.name for found in numbers.runs)
        if names != self._run_options:
            self._run_options = names
            _fill(self.run_select, {name: name for name in names}, run.name)

    def _show_dead(self, view: View) -> None:
        self.dead_panel.set_visibility(bool(view.dead))
        if view.dead == self._shown_dead:
            return
        self._shown_dead = view.dead
        self.dead_panel.clear()
        with self.dead_panel:
            ui.html(f"Dead letters ({view.numbers.dead if view.numbers else 0:,})", sanitize=False, tag="h2")
            if not self.may_act:
                ui.html(self._how_to_retry(), sanitize=False, tag="p").classes("muted")
            for letter in view.dead:
                self._letter(letter)

    def _how_to_retry(self) -> str:
        by_command = "<code>eaglefeed dead retry</code>"
        if self.access.has_token:
            return f'<a href="/login">Sign in</a> with the token to retry from here, or use {by_command}.'
        return f"To retry from here, start the dashboard with EAGLEFEED_DASHBOARD_TOKEN; or use {by_command}."

    def _letter(self, letter: DeadLetter) -> None:
        with ui.element("div").classes("letter"):
            with ui.element("div"):
                ui.html(escape(letter.reason), sanitize=False).classes("why")
                sentence = f"{letter.description}, {letter.where}, {letter.failed_at} UTC"
                ui.html(escape(sentence), sanitize=False)
                ui.html(escape(letter.job_id), sanitize=False).classes("id")
            if self.may_act:
                button = ui.html("Retry", sanitize=False, tag="button").classes("action")
                button.props("type=button")
                button.props["aria-label"] = f"Retry {letter.job_id[:12]}"
                button.on("click", lambda _, letter=letter: self._retry(letter))

    async def _retry(self, letter: DeadLetter) -> None:
        if not self.may_act:
            return
        try:
            await asyncio.to_thread(dead_letters.retry, self.watch.redis, letter.job_id)
            ui.notify(f"Batch {letter.job_id[:12]} is queued again", type="positive")
        except UsageError as error:
            ui.notify(str(error), type="warning")
        self.watch.look_again()
        await self.watch.poll()
        self.refresh()


def _fill(select: Any, options: dict[str, str], value: str) -> None:
    select.clear()
    with select:
        for key, text in options.items():
            option = ui.html(escape(text), sanitize=False, tag="option")
            option.props["value"] = key
            if key == value:
                option.props("selected")


def _show_chart(chart: Any, options: dict[str, Any], sentence: str) -> None:
    if chart.options != options:
        chart.options.clear()
        chart.options.update(options)
        chart.update()
    if chart.props.get("aria-label") != sentence:
        chart.props["aria-label"] = sentence


def _clock(run: Run) -> str:
    if not run.eta_seconds:
        return ""
    return datetime.fromtimestamp(time.time() + run.eta_seconds, timezone.utc).strftime("%a %H:%M")
