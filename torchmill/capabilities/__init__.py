"""Compute capabilities: lists of them as PyTorch reads them; the GPUs, toolkits and releases of each."""

from torchmill.capabilities.choosing import chosen, official
from torchmill.capabilities.targets import Target, canonical

__all__ = ["Target", "canonical", "chosen", "official"]
