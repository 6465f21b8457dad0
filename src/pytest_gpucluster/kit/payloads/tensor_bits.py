"""Tensors of torch compared bit by bit. A shared part of payloads; Python 3.6."""

from typing import Any

CHUNK = 1 << 24  # elements that are filled or summed at once


def bits(torch: Any, tensor: Any) -> Any:
    """Return a tensor's bits as integers, so that NaN and -0 can be compared."""
    width = tensor.element_size()
    types = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.reshape(-1).view(types[width])


def digest_of(torch: Any, tensor: Any) -> str:
    """Return a digest of a tensor's bits: their sum and their sum weighted by position, modulo 2^64."""
    flat = bits(torch, tensor)
    plain = weighted = 0
    for start in range(0, flat.numel(), CHUNK):
        part = flat[start : start + CHUNK].to(torch.int64)
        positions = torch.arange(start, start + part.numel(), device=part.device, dtype=torch.int64) % 65521 + 1
        plain += int(part.sum().item())
        weighted += int((part * positions).sum().item())
    return "%016x%016x" % (plain % (1 << 64), weighted % (1 << 64))
