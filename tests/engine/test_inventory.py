"""The inventory says all that the plugin touches, and the installed SGLang is what it was written for."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from workers.engine_launch import CHECKOUT
from workers.sglang_plugin import inventory
from workers.sglang_plugin.settings import CPU_PLATFORM, VARIABLE

PLUGIN = Path(inventory.__file__).parent
INVENTORY = (PLUGIN / "INVENTORY.md").read_text("utf-8")


@pytest.mark.parametrize("hook", inventory.HOOKS, ids=lambda hook: hook.function)
def test_each_hook_is_in_the_inventory(hook: inventory.Hook) -> None:
    """A registered hook stands in INVENTORY.md with its target, our function and a test that is there."""
    start = f"| `{hook.target.removeprefix('sglang.srt.')}` | `{hook.function}` |"
    (row,) = (line for line in INVENTORY.splitlines() if line.startswith(start))
    found = re.search(r"`(\w+\.py)::(\w+)(\[.*\])?` \|$", row)
    assert found is not None, row
    assert f"def {found[2]}(" in (Path(__file__).parent / found[1]).read_text("utf-8")


def test_each_target_is_as_expected() -> None:
    """The installed SGLang has each target with the expected parameters; what is gone or changed is noticed."""
    _in_engine_environment(
        """
        from dataclasses import replace
        for hook in inventory.HOOKS:
            assert inventory.mismatch(hook) is None, inventory.mismatch(hook)
            assert callable(inventory.function_of(hook)), hook
        first = inventory.HOOKS[0]
        assert "was expected with" in inventory.mismatch(replace(first, parameters=("self",)))
        assert "is missing" in inventory.mismatch(replace(first, target="sglang.srt.managers.scheduler.Scheduler.gone"))
        assert "is missing" in inventory.mismatch(replace(first, target="sglang.srt.gone.away"))
        """
    )


def test_nothing_is_hooked_but_what_is_listed() -> None:
    """``register`` is called for the inventory's hooks and the tests' faults alone."""
    calls = []
    for path in PLUGIN.glob("*.py"):
        calls += [f"{path.name}: {line.strip()}" for line in path.read_text().splitlines() if ".register(" in line]
    assert sorted(calls) == [
        "plugin.py: HookRegistry.register(faults.HANDLE_REQUEST, faults.handle_request, HookType.AROUND)",
        "plugin.py: HookRegistry.register(hook.target, inventory.function_of(hook), HookType.AROUND)",
    ]


def test_the_version_is_the_installed_one() -> None:
    """The plugin's version of SGLang, the run identity's and the installed one are the same."""
    from config.model_identity import ENGINE

    assert importlib.metadata.version("sglang") == inventory.SUPPORTED_SGLANG
    assert f"sglang {inventory.SUPPORTED_SGLANG}" == ENGINE
    assert re.search(rf"\b{re.escape(inventory.SUPPORTED_SGLANG)}\b", INVENTORY)


def test_a_changed_sglang_does_not_start() -> None:
    """A target with other parameters ends the process, which says the supported version."""
    said = _in_engine_environment(
        """
        from dataclasses import replace
        from workers.sglang_plugin import plugin
        inventory.HOOKS = (replace(inventory.HOOKS[0], parameters=("self",)),)
        plugin.register()
        """,
        exit_code=78,
    )
    assert "was expected with" in said
    assert f"made for sglang {inventory.SUPPORTED_SGLANG}" in said


def test_a_model_that_cannot_capture_is_refused_by_name() -> None:
    """Without SGLang's own method, or without one stack of layers that captures: both messages name the class."""
    said = _in_engine_environment(
        """
        import os, torch
        from sglang.srt.model_executor.model_runner_components import attention_backend_setup as setup
        from workers.sglang_plugin import layers
        from workers.sglang_plugin.settings import CPU_PLATFORM, VARIABLE, PluginSettings
        os.environ[VARIABLE] = PluginSettings("run", "/nowhere", (1,), 4, 8, "bfloat16", "e", "p", 1).to_json()

        class NoCapture(torch.nn.Module):
            pass

        class NoStack(torch.nn.Module):
            def set_eagle3_layers_to_capture(self, layer_ids):
                assert layer_ids == [1]

        def configure(model):
            asked = {"eagle_use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": [1]}
            asked |= {"dflash_use_aux_hidden_state": False, "dflash_target_layer_ids": None, "is_dspark": False}
            layers.configure_capture(setup.configure_aux_hidden_state_capture, model=model, **asked)

        try:
            configure(NoCapture())
        except ValueError as error:
            assert "Model NoCapture does not implement" in str(error)
        else:
            raise SystemExit("it was taken")
        configure(NoStack())
        """,
        exit_code=79,
    )
    assert "NoStack has 0 layer stacks that can capture" in said


def test_no_sleep_while_answers_are_held_back() -> None:
    """SGLang's idle sleep ends with the next request alone, so it is taken only while nothing waits for us."""
    _in_engine_environment(
        """
        from workers.sglang_plugin import receipts
        slept = []
        receipts.sleep_on_idle(slept.append, "scheduler")
        assert slept == ["scheduler"]
        receipts._held.append("an answer whose file is being written")
        receipts.sleep_on_idle(slept.append, "scheduler")
        assert slept == ["scheduler"]
        """
    )


def _in_engine_environment(code: str, exit_code: int = 0) -> str:
    """Run code in a process like the engine's own: importing SGLang without a GPU warns, and needs our platform."""
    environment = {
        **os.environ,
        "SGLANG_PLATFORM": CPU_PLATFORM,
        "PYTHONPATH": f"{PLUGIN / 'dist'}{os.pathsep}{CHECKOUT}",
        "PYTHONWARNINGS": "ignore",
        VARIABLE: "{}",
    }
    program = "from workers.sglang_plugin import inventory\n" + textwrap.dedent(code)
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == exit_code, done.stderr
    return (done.stdout or done.stderr).strip()
