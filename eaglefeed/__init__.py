"""Complete hidden states for training EAGLE-3 drafters."""

__version__ = "0.1.0"
