"""compose.yaml as records: the services' commands, environment, health checks and order, with variables put in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from eaglefeed.errors import UsageError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class HealthCheck:
    command: tuple[str, ...]
    interval_seconds: float
    timeout_seconds: float


@dataclass(frozen=True, slots=True)
class Service:
    """One service as ``local/stack.py`` runs it.

    Attributes:
        needs: services that must be healthy first.
        restarts: whether it is started again when it ends by itself.
    """

    name: str
    command: tuple[str, ...]
    environment: dict[str, str]
    health_check: HealthCheck | None
    needs: tuple[str, ...]
    restarts: bool
    replicas: int


def read_services(path: Path, names: tuple[str, ...], variables: Mapping[str, str]) -> dict[str, Service]:
    """The named services of a compose file.

    Raises:
        UsageError: a service or a required variable is missing.
    """
    document = yaml.safe_load(path.read_text("utf-8"))
    missing = [name for name in names if name not in document["services"]]
    if missing:
        raise UsageError(f"{path} has no service {missing[0]!r}")
    return {name: _service(name, _interpolated(document["services"][name], variables, path)) for name in names}


def interpolate(text: str, variables: Mapping[str, str], where: object = "compose.yaml") -> str:
    """Put variables in as the compose specification says: ``$V ${V} ${V-d} ${V:-d} ${V?e} ${V:?e} $$``, nested.

    Raises UsageError when a required variable is missing, with its message.
    """
    out, position = [], 0
    while position < len(text):
        if text[position] != "$":
            out.append(text[position])
            position += 1
        elif text.startswith("$$", position):
            out.append("$")
            position += 2
        elif text.startswith("${", position):
            end = _closing_brace(text, position + 2, where)
            out.append(_substitute(text[position + 2 : end], variables, where))
            position = end + 1
        else:
            name = _NAME.match(text, position + 1)
            if name is None:
                raise UsageError(f"{where}: a lone $ in {text!r}; write $$ for a dollar sign")
            out.append(variables.get(name.group(), ""))
            position = name.end()
    return "".join(out)


def _substitute(expression: str, variables: Mapping[str, str], where: object) -> str:
    name = _NAME.match(expression)
    if name is None:
        raise UsageError(f"{where}: ${{{expression}}} names no variable")
    value, rest = variables.get(name.group()), expression[name.end() :]
    if not rest:
        return value or ""
    empty_counts_as_missing = rest.startswith(":")
    operator, operand = rest.removeprefix(":")[:1], rest.removeprefix(":")[1:]
    if value or (value is not None and not empty_counts_as_missing):
        return value
    if operator == "-":
        return interpolate(operand, variables, where)
    raise UsageError(f"{where}: {operand or f'{name.group()} is not set'}")


def _closing_brace(text: str, position: int, where: object) -> int:
    depth = 1
    while position < len(text):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return position
        position += 1
    raise UsageError(f"{where}: a ${{ that is not closed in {text!r}")


def _interpolated(node: Any, variables: Mapping[str, str], where: object) -> Any:
    if isinstance(node, dict):
        return {key: _interpolated(value, variables, where) for key, value in node.items()}
    if isinstance(node, list):
        return [_interpolated(value, variables, where) for value in node]
    return interpolate(node, variables, where) if isinstance(node, str) else node


def _service(name: str, record: dict[str, Any]) -> Service:
    check = record.get("healthcheck")
    return Service(
        name=name,
        command=tuple(str(part) for part in record["command"]),
        environment={key: str(value) for key, value in record.get("environment", {}).items()},
        health_check=_health_check(check) if check else None,
        needs=tuple(record.get("depends_on", {})),
        restarts=record.get("restart", "no") != "no",
        replicas=int(record.get("deploy", {}).get("replicas", 1)),
    )


def _health_check(record: dict[str, Any]) -> HealthCheck:
    test = record["test"]
    if test[0] != "CMD":
        raise UsageError(f"health checks are CMD lists here, not {test!r}")
    return HealthCheck(tuple(test[1:]), _seconds(record["interval"]), _seconds(record["timeout"]))


def _seconds(text: str) -> float:
    return float(text.removesuffix("s"))
