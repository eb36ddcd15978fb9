"""Source in, source out: libcst passes that write the distributed kernel. Neither torch nor triton is imported here."""

from .emit import GeneratedModule, generate

__all__ = ["GeneratedModule", "generate"]
