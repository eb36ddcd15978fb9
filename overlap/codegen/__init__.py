"""Source in, source out: libcst passes that write the distributed kernel. Neither torch nor triton is imported here."""

from .context import PlanText
from .emit import GeneratedModule, generate
from .kernel_module import generate_kernel

__all__ = ["GeneratedModule", "PlanText", "generate", "generate_kernel"]
