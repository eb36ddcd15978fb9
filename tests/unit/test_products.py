"""Products on a gathered tensor are compiled ahead of the launch that they follow."""

import pytest
import torch

from overlap.ops.products import Product, warm_copy, warm_product
from overlap.ops.views import gather_view


class Compiling:
    """A runtime whose compiler fails ``fails`` times."""

    sm_count = 132

    def __init__(self, fails):
        self.fails = fails
        self.compiled = 0

    def warm(self, kernel, grid, arguments, **options):
        if self.fails:
            self.fails -= 1
            raise RuntimeError("no room for the compiler")
        self.compiled += 1


@pytest.mark.parametrize("which", ["product", "copy"])
def test_what_failed_to_compile_is_compiled_by_the_next_call(which):
    """Behind a lane that is held it would be too late."""
    x, w = torch.zeros(4, 16, dtype=torch.float16), torch.zeros(16, 8, dtype=torch.float16)
    view, runtime = gather_view(x, 0, None, 2, 0), Compiling(1)
    product = Product(w, torch.zeros(1, 8, 8, dtype=torch.float16), None)
    warm = {"product": lambda: warm_product(product, view, runtime), "copy": lambda: warm_copy(x, runtime)}[which]
    with pytest.raises(RuntimeError):
        warm()
    for _ in range(2):
        warm()
        assert runtime.compiled == 1
