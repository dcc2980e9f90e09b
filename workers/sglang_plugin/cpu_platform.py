"""SGLang's CPU platform under a name of ours, so that a released wheel serves without a GPU."""

from __future__ import annotations

from sglang.srt.platforms.cpu import CpuSRTPlatform
from sglang.srt.platforms.device_mixin import PlatformEnum


class EaglefeedCpuPlatform(CpuSRTPlatform):
    """The stock CPU platform, with PyTorch's own attention instead of the AMX build of sgl_kernel."""

    _enum = PlatformEnum.OOT

    def get_dispatch_key_name(self) -> str:
        return "native"

    def get_default_attention_backend(self) -> str:
        return "torch_native"


def activate() -> str:
    """The class's dotted name, as SGLang wants it from a platform's entry point."""
    return "workers.sglang_plugin.cpu_platform.EaglefeedCpuPlatform"
