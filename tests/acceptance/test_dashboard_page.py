"""The page as a person sees it: real headless Chromium, the real command, a real valkey-server.

``EAGLEFEED_PICTURES=docs/img`` keeps the screenshots.
"""

from __future__ import annotations

import http.client
import itertools
import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from redis import Redis

from config import names
from tests.browser import TOKEN, Dashboard, open_browser, resize, take_picture, wait_for, why_no_browser
from tests.scenes import Scene, fail_jobs, play, report_node

needs_browser = pytest.mark.skipif(why_no_browser() is not None, reason=str(why_no_browser()))
DATABASE = 8


@pytest.fixture(scope="module")
def dashboard(valkey: str) -> Iterator[Dashboard]:
    """One dashboard for the module: its scenes change beneath it."""
    with Dashboard(valkey.rsplit("/", 1)[0] + f"/{DATABASE}") as found:
        yield found


@pytest.fixture
def redis(dashboard: Dashboard) -> Redis:
    client = Redis.from_url(dashboard.redis_url)
    client.flushdb()
    return client


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    driver = open_browser(tmp_path_factory.mktemp("chromium"))
    yield driver
    driver.quit()


def look(browser: Any, dashboard: Dashboard, query: str, *sentences: str) -> str:
    """Open the page and wait until it says all of ``sentences``; the page's whole text."""
    browser.get(f"{dashboard.url}?{query}")
    for sentence in sentences:
        wait_for(lambda sentence=sentence: sentence in text_of(browser), f"{sentence!r} on the page")
    return text_of(browser)


def text_of(browser: Any) -> str:
    return str(browser.execute_script("return document.body.innerText"))


def keep_pictures(browser: Any, dashboard: Dashboard, name: str, sentence: str, query: str = "") -> None:
    """Screenshots, where a folder is named: wide and light, wide and dark, phone and dark."""
    folder = os.environ.get("EAGLEFEED_PICTURES")
    if not folder:
        return
    # A dashboard of their own: it has seen no earlier scene.
    with Dashboard(dashboard.redis_url) as fresh:
        for theme, width, kind in (("light", 1280, "wide"), ("dark", 1280, "wide-dark"), ("dark", 390, "phone-dark")):
            resize(browser, width, 900)
            look(browser, fresh, f"{query}theme={theme}", sentence)
            take_picture(browser, Path(folder) / f"{name}-{kind}.png", width)
    resize(browser, 1280, 900)
    browser.get(dashboard.url)


@needs_browser
def test_a_run_in_progress(browser: Any, dashboard: Dashboard, redis: Redis) -> None:
    """How far, how fast, until when and what is wrong stand there in this order, with the run's numbers."""
    scene = Scene(working=4)
    play(redis, scene)
    text = look(browser, dashboard, "", "of 24,000 unique", "gpu-02", "Nothing needs you")
    places = [text.index(heading) for heading in ("How far", "How fast", "Until when", "What is wrong", "Pipeline")]
    assert places == sorted(places)
    for expected in (
        "Running",
        "samples/s",
        "tokens/s",
        "raw MB/s",
        "1 min",
        "60 min",
        "compression 1.49×",
        "too-long",
    ):
        assert expected in text
    for expected in ("Nothing needs you", "gpu-01", "NVIDIA H200", "sglang 0.5.23", "31 % of 512.0 GiB", "narrow"):
        assert expected in text
    wait_for(lambda: browser.execute_script("return document.querySelectorAll('.chart svg').length") == 4, "4 charts")
    keep_pictures(browser, dashboard, "run", "of 24,000 unique")


@needs_browser
def test_the_page_is_live(browser: Any, dashboard: Dashboard, redis: Redis) -> None:
    """A new count appears without a reload, and the focused element keeps its focus."""
    play(redis, Scene())
    look(browser, dashboard, "", "of 24,000 unique")
    browser.execute_script("window.here = 1; document.querySelector('select').focus()")
    redis.hincrby(names.count_key(Scene().run), "unique", 1_000)
    wait_for(lambda: "of 25,000 unique" in text_of(browser), "the new count")
    assert browser.execute_script("return window.here") == 1
    assert browser.execute_script("return document.activeElement.tagName") == "SELECT"


@needs_browser
def test_a_stalled_run(browser: Any, dashboard: Dashboard, redis: Redis) -> None:
    """It says since when nothing was stored, that no ETA is known, and what the node says."""
    scene = Scene("stalled-run", quiet_minutes=9, engine_state="down", spool_fraction=0.93, rejected_per_minute=0)
    play(redis, scene)
    text = look(browser, dashboard, "", "Stalled", "gpu-02 is down")
    for expected in ("Nothing was stored for", "although batches wait", "unknown", "gpu-01 is down", "93 % full"):
        assert expected in text
    keep_pictures(browser, dashboard, "stalled", "Stalled")


@needs_browser
def test_dead_letters_are_retried_with_the_token_only(browser: Any, dashboard: Dashboard, redis: Redis) -> None:
    """Without signing in there is no button; with the token one click puts the batch back into its queue."""
    play(redis, Scene(waiting=12))
    fail_jobs(redis, 2)
    text = look(browser, dashboard, "", "Dead letters (2)", "2 dead letters wait")
    assert "job payload version 0" in text
    assert browser.find_elements("css selector", ".letter button") == []
    browser.get(f"{dashboard.url}login")
    browser.find_element("name", "token").send_keys("not the token")
    browser.find_element("css selector", "button").click()
    wait_for(lambda: "That is not the token" in text_of(browser), "the refusal")
    browser.find_element("name", "token").send_keys(TOKEN)
    browser.find_element("css selector", "button").click()
    wait_for(lambda: browser.find_elements("css selector", ".letter button"), "the retry buttons")
    keep_pictures(browser, dashboard, "dead-letters", "Dead letters (2)")
    before = redis.llen("rq:queue:extract")
    buttons = wait_for(lambda: browser.find_elements("css selector", ".letter button"), "the retry buttons")
    buttons[0].send_keys("\n")
    wait_for(lambda: redis.llen("rq:queue:extract") == before + 1, "the batch in its queue")
    wait_for(lambda: "Dead letters (1)" in text_of(browser), "one letter less")
    assert TOKEN not in browser.page_source
    browser.delete_all_cookies()


@needs_browser
def test_an_empty_redis(browser: Any, dashboard: Dashboard, redis: Redis) -> None:
    """Before the first batch the page says what to do, and fills by itself when one comes."""
    text = look(browser, dashboard, "", "Nothing has been enqueued yet")
    assert "eaglefeed produce" in text
    keep_pictures(browser, dashboard, "empty", "Nothing has been enqueued yet")
    play(redis, Scene())
    wait_for(lambda: "of 24,000 unique" in text_of(browser), "the run")


@needs_browser
def test_a_hundred_thousand_samples_on_many_nodes(browser: Any, dashboard: Dashboard, redis: Redis) -> None:
    """100,000 samples, 24 nodes and a second run: the page stays whole, and a run can be chosen by name."""
    scene = Scene(run="kimi-k2.5", unique=100_000, samples_per_minute=1_500, minutes=60, waiting=250, working=48)
    play(redis, scene)
    redis.sadd(names.RUNS_KEY, "smollm2-demo")
    redis.hset(names.count_key("smollm2-demo"), mapping={"unique": 190, "stored": 190})
    for place in range(24):
        report_node(redis, f"gpu-{place + 1:02}", scene, "NVIDIA H200", spool_fraction=place / 24)
    look(browser, dashboard, "run=kimi-k2.5", "of 100,000 unique")
    wait_for(lambda: "gpu-24" in text_of(browser), "the 24th node")
    select = browser.find_element("css selector", "select[aria-label=Run]")
    browser.execute_script(
        "arguments[0].value = 'smollm2-demo'; arguments[0].dispatchEvent(new Event('change'))", select
    )
    wait_for(lambda: "190 of 190 unique" in text_of(browser), "the other run")
    assert "run=smollm2-demo" in browser.current_url
    keep_pictures(browser, dashboard, "large", "of 100,000 unique", "run=kimi-k2.5&")


@needs_browser
def test_it_fits_a_phone(browser: Any, dashboard: Dashboard, redis: Redis) -> None:
    """At 360 pixels nothing runs off the side, and what is touched is at least 40 pixels high."""
    play(redis, Scene())
    resize(browser, 360, 740)
    look(browser, dashboard, "", "of 24,000 unique")
    wait_for(lambda: browser.execute_script("return document.querySelectorAll('.chart svg').length") == 4, "4 charts")
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 360
    heights = browser.execute_script(
        "return [...document.querySelectorAll('select,button,.action')].map(e => e.offsetHeight)"
    )
    assert min(heights) >= 40
    resize(browser, 1280, 900)


CONTRAST = """
const lum = c => { const f = c.map(v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
                   return .2126 * f[0] + .7152 * f[1] + .0722 * f[2] };
const rgb = s => (s.match(/[\\d.]+/g) || []).map(Number);
const back = e => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor);
                    if (c.length === 3 || c[3] > .99) return c.slice(0, 3) } return [255, 255, 255] };
const low = [];
for (const e of document.querySelectorAll('.page *')) {
  const own = [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
  if (!own || !e.offsetParent || e.closest('svg')) continue;
  const a = lum(rgb(getComputedStyle(e).color).slice(0, 3)), b = lum(back(e));
  const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
  if (ratio < 4.5) low.push(e.tagName + '.' + e.className + ' ' + ratio.toFixed(2) + ' ' + e.textContent.slice(0, 30));
}
return low;
"""


@needs_browser
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_has_contrast(browser: Any, dashboard: Dashboard, redis: Redis, theme: str) -> None:
    """4.5:1 or more for every text, in both themes, with troubles on the page."""
    play(redis, Scene(f"contrast-{theme}", quiet_minutes=9, engine_state="down", spool_fraction=0.95))
    fail_jobs(redis, 1)
    look(browser, dashboard, f"theme={theme}", "Dead letters (1)")
    assert browser.execute_script(CONTRAST) == []


@needs_browser
def test_it_can_be_heard_and_reached_by_keyboard(browser: Any, dashboard: Dashboard, redis: Redis) -> None:
    """Language, landmarks, headings in order, names for all controls, charts and bars; Tab comes to each control."""
    play(redis, Scene())
    look(browser, dashboard, "", "of 24,000 unique")
    script = browser.execute_script
    assert script("return document.documentElement.lang") == "en-US"
    assert script("return [document.querySelectorAll('main').length, document.querySelectorAll('h1').length]") == [1, 1]
    named = "select,button,[role=img],[role=progressbar],[role=meter],[role=region]"
    unnamed = f"""return [...document.querySelectorAll('{named}')].filter(e => e.offsetParent
        && !(e.getAttribute('aria-label') || e.textContent.trim())).map(e => e.outerHTML.slice(0, 80))"""
    assert script(unnamed) == []
    levels = script(
        "return [...document.querySelectorAll('h1,h2,h3')].filter(e => e.offsetParent).map(e => +e.tagName[1])"
    )
    assert all(later - earlier <= 1 for earlier, later in itertools.pairwise(levels))
    assert script("return document.querySelector('.state').getAttribute('role')") == "status"
    from selenium.webdriver import ActionChains, Keys

    reached = []
    for _ in range(8):
        ActionChains(browser).send_keys(Keys.TAB).perform()
        reached.append(
            script("return document.activeElement.getAttribute('aria-label') || document.activeElement.innerText")
        )
    for expected in ("Skip to main content", "Run", "Theme", "Sign in"):
        assert expected in reached


@needs_browser
def test_nothing_is_asked_of_the_network(browser: Any, dashboard: Dashboard, redis: Redis) -> None:
    """Every request of the page goes to the dashboard itself, and the browser has no complaint."""
    play(redis, Scene())
    browser.get_log("performance")
    browser.get_log("browser")
    look(browser, dashboard, "", "of 24,000 unique")
    wait_for(lambda: browser.execute_script("return document.querySelectorAll('.chart svg').length") == 4, "4 charts")
    asked = set()
    for entry in browser.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] in ("Network.requestWillBeSent", "Network.webSocketCreated"):
            params = message["params"]
            asked.add(urlsplit(params.get("request", params)["url"]).netloc)
    assert asked - {"", urlsplit(dashboard.url).netloc} == set()
    assert [entry["message"] for entry in browser.get_log("browser")] == []


@needs_browser
def test_a_lost_redis_is_said_with_the_last_numbers(browser: Any, tmp_path: Path) -> None:
    """The page keeps what it had and says that Redis does not answer; it recovers by itself."""
    from tests.services import Valkey

    server = Valkey(tmp_path)
    server.start()
    try:
        play(Redis.from_url(server.url), Scene())
        with Dashboard(server.url) as other:
            look(browser, other, "", "of 24,000 unique")
            server.stop()
            wait_for(lambda: "Redis does not answer" in text_of(browser), "the loss", 60)
            assert "of 24,000 unique" in text_of(browser)
            server.start()
            wait_for(lambda: "Redis does not answer" not in text_of(browser), "the recovery", 60)
    finally:
        server.stop()


def ask(dashboard: Dashboard, path: str, **headers: str) -> tuple[int, str, dict[str, str]]:
    request = urllib.request.Request(dashboard.url.rstrip("/") + path, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read().decode(), dict(answer.headers)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode(), dict(error.headers)


def test_metrics_and_status_over_http(dashboard: Dashboard, redis: Redis) -> None:
    """/metrics, /status.json and /healthz answer with the run's numbers and with headers that forbid framing."""
    play(redis, Scene(run="over-http", unique=77))
    wait_for(lambda: 'unique_total{run="over-http"} 77' in ask(dashboard, "/metrics")[1], "the run in /metrics")
    status, text, headers = ask(dashboard, "/status.json")
    assert (status, json.loads(text)["runs"][0]["counts"]["unique"]) == (200, 77)
    assert headers["x-frame-options"] == "DENY"
    assert "default-src 'self'" in headers["content-security-policy"]
    assert ask(dashboard, "/healthz")[:2] == (200, "ok")


def test_a_foreign_host_name_is_refused(dashboard: Dashboard) -> None:
    """A web page that rebinds its name to this machine gets nothing."""
    address = urlsplit(dashboard.url)
    connection = http.client.HTTPConnection("127.0.0.1", address.port or 80, timeout=20)
    connection.request("GET", "/metrics", headers={"Host": "evil.example"})
    assert connection.getresponse().status == 421
    connection.close()
