"""A real headless Chromium, and the real dashboard command for it to look at."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[1]
START_SECONDS = 60.0
WAIT_SECONDS = 20.0
TOKEN = "a-token-for-tests-only"
_SWITCHES = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def why_no_browser() -> str | None:
    """Why there can be no browser test here, or None."""
    try:
        import selenium  # noqa: F401
    except ImportError:
        return "selenium is not installed"
    missing = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return f"no {missing[0]} on this machine (Debian: apt-get install chromium chromium-driver)" if missing else None


def open_browser(profile: Path, width: int = 1280, height: int = 900) -> Any:
    """A driver with a fresh profile that records what the page says and asks for."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for switch in (*_SWITCHES, f"--user-data-dir={profile}", f"--window-size={width},{height}"):
        options.add_argument(switch)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return webdriver.Chrome(options=options, service=Service(str(shutil.which("chromedriver"))))


def resize(driver: Any, width: int, height: int) -> None:
    """Exactly this viewport, as a phone of that width has it below 600."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def take_picture(driver: Any, path: Path, width: int) -> None:
    """The whole page at this width."""
    resize(driver, width, 900)
    time.sleep(0.5)
    resize(driver, width, int(driver.execute_script("return document.documentElement.scrollHeight")))
    time.sleep(1.0)
    path.parent.mkdir(parents=True, exist_ok=True)
    driver.save_screenshot(str(path))


def wait_for(condition: Callable[[], Any], what: str, seconds: float = WAIT_SECONDS) -> Any:
    """Poll until ``condition`` gives something true; raises AssertionError naming ``what``."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.2)
    raise AssertionError(f"{what}: not within {seconds:.0f} s")


@dataclass(slots=True)
class Dashboard:
    """``eaglefeed dashboard`` as a child process on a free port of loopback."""

    redis_url: str
    token: str = TOKEN
    environment: dict[str, str] = field(default_factory=dict)
    url: str = ""
    log: list[str] = field(default_factory=list)
    process: subprocess.Popen[str] | None = None
    reader: threading.Thread | None = None

    def __enter__(self) -> Dashboard:
        environment = {**os.environ, "EAGLEFEED_DASHBOARD_TOKEN": self.token, "PYTHONPATH": str(CHECKOUT)}
        environment |= {"REDIS_URL": self.redis_url, **self.environment}
        command = [sys.executable, "-m", "eaglefeed.cli", "dashboard", "--port", "0"]
        self.process = subprocess.Popen(command, cwd=CHECKOUT, env=environment, stderr=subprocess.PIPE, text=True)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        try:
            line = wait_for(lambda: [line for line in self.log if "http://" in line], "the dashboard", START_SECONDS)[0]
        except AssertionError:
            self.__exit__()
            raise
        self.url = re.findall(r"http://\S+", line)[0]
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(20)
            if self.reader is not None:
                self.reader.join(20)
            if self.process.stderr is not None:
                self.process.stderr.close()

    def _read(self) -> None:
        if self.process is not None and self.process.stderr is not None:
            self.log.extend(iter(self.process.stderr.readline, ""))
