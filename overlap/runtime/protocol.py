"""What a runtime must do for a generated module: one protocol, two implementations.

`overlap.sim` implements it with simulated ranks, streams and copy engines on the CPU,
`overlap.runtime.cuda.runtime` on GPUs. `runtime/launch/launch.py` drives either through these methods alone, and
one contract suite (tests) runs on both. Tensors are `torch.Tensor`s in both worlds.

    rank 0   main  | entry | ------------- GEMM (waits on flags) ------------ | join |
             side          \\ copy 1, flag 1 | copy 2, flag 2 | ... | done     /

    rank 0   main  | entry | - GEMM (counts tiles) - | sum (waits on flags) - | join | done
             side          \\ hold | copy 1, flag 1 | hold | copy 2, flag 2 ... /
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

from .repeat.places import Place

IN_FLIGHT = "overlap"
"""One launch is in flight on a device at a time (`Runtime.in_order`): two that spin side by side could each hold what the other
needs."""
NONE_LATER: Mapping[str, Place | None] = MappingProxyType({})


@runtime_checkable
class Runtime(Protocol):
    """One rank's view of a process group. Obtained with `runtime_of(group)`."""

    rank: int
    world: int
    sm_count: int
    """Multiprocessors of this rank's device."""
    launches_early: bool
    """Whether kernels may be launched while what is ahead on their stream still ends, which they then wait for themselves."""
    device: Any
    """The `torch.device` that ordinary tensors of this rank live on."""

    @property
    def blocking(self) -> bool:
        """Whether the host waits for every kernel that it launches (``CUDA_LAUNCH_BLOCKING=1``)."""

    @property
    def one_queue(self) -> bool:
        """Whether all streams reach the device through one queue, where a copy may stand behind another stream's kernel."""

    @property
    def nodes(self) -> tuple[int, ...]:
        """The node of every rank; pointers reach the ranks of one's own (`overlap.runtime.group.reach`)."""

    @property
    def pes(self) -> tuple[int, ...]:
        """NVSHMEM's number of every rank; empty where symmetric memory is not NVSHMEM's."""

    @property
    def linked(self) -> dict[str, Any]:
        """Launch options of kernels that call NVSHMEM; of a group whose memory is not NVSHMEM's, of kernels that may not."""

    def symmetric(self, shape: Sequence[int], dtype: Any, *, zero: bool = False) -> Any:
        """Collective: the same contiguous tensor on every rank, reachable by peers; ``zero``: cleared before any can reach it."""

    def peer(self, tensor: Any, rank: int) -> Any:
        """The same-shaped view of ``rank``'s copy of a symmetric tensor (or view of one); rank itself gives ``tensor``.

        RuntimeContractError where no pointer reaches ``rank``.
        """

    def table(self, values: Sequence[int], *, bits: int = 32, into: Any = None) -> Any:
        """Uploads integers into an ordinary device tensor of int32 or int64, before any launch that reads it.

        Into ``into``, an earlier table of as many values or part of one, where it is given; else into a new one.
        """

    def agree(self, what: str, value: Any, *, seconds: float | None = None) -> list[Any]:
        """Collective: every rank's ``value`` in rank order; never on a stream, never while a graph is captured.

        Args:
            what: names the meeting in errors, on ranks that come and about ranks that do not.
            value: an exception says that this rank failed instead of coming: it returns at once, the others raise.
            seconds: how long the others are waited for (0: for ever); the setting ``deadline_s`` by default.
        """

    def main_stream(self) -> Any:
        """The stream the caller works on."""

    def collectives(self, plan: Any, source: Any, target: Any) -> None:
        """Enqueues all collectives of a `CommPlan` over one tensor on the main stream, by a communication library.

        ``source`` and ``target`` are what this rank gives and gets, each one box (`overlap.runtime.group.library.Boxed`).
        """

    def fork(self, lane: int) -> Any:
        """Side stream number ``lane``, ordered behind all work enqueued so far on the main stream."""

    def forks(self, lanes: Sequence[int]) -> Sequence[Any]:
        """As `fork` gives them one by one."""

    def behind(self, stream: Any, other: Any) -> None:
        """Orders one side stream behind all work enqueued so far on another."""

    def join(self, stream: Any) -> None:
        """Orders the main stream behind all work enqueued so far on ``stream``."""

    def capturing(self) -> bool:
        """Whether what is enqueued on the main stream goes into a graph."""

    def in_order(self, key: Any, main: Any) -> AbstractContextManager[bool]:
        """Around a call: ``main``, the main stream, is ordered behind the last call under ``key``, whatever stream that was on.

        Gives whether it is being captured into a graph. A capture is ordered behind what the same
        capture recorded; replays are ordered by the stream they are launched on alone. A call that raises is not recorded.
        """

    def holder(self, word: Any, value: int) -> Callable[[Any], None]:
        """Called with a stream, holds it until ``word`` is at least ``value`` and orders it behind the releases that made it so.

        ``word`` is an int64 word of this rank's own state that kernels count up from 0 within a launch; its low 32 bits are
        compared. No multiprocessor is held.
        """

    def mark(self, stream: Any) -> Any:
        """Enqueues a mark on a stream, for `elapsed`; it takes no multiprocessor."""

    def passed(self, mark: Any) -> bool:
        """Whether its stream has passed a mark; the host does not wait."""

    def elapsed(self, begin: Any, end: Any) -> float:
        """Nanoseconds (simulated: steps) between two marks that their streams have passed."""

    def copier(self, dst: Any, src: Any, place: Place | None = None) -> Callable[..., None]:
        """A copy-engine copy between two ranks' memory, 1-D or 2-D, made ready; called with a stream it enqueues it.

        ``dst`` and ``src`` are views of one shape and dtype. ``place``: where each call has its source, of the layout of ``src``,
        in what it carries, which comes behind the stream; it is one copy, 1-D or 2-D.
        """

    def chained(self, enqueues: Sequence[Callable[..., None]]) -> Callable[..., None]:
        """What `copier`, `holder` and `warm` made, as one: called with a stream, and what a call carries where they take
        something from it, it enqueues them one behind the other."""

    def settled(self, enqueue: Callable[..., None]) -> Callable[..., None] | None:
        """What `chained` made, for streams that no graph captures and for many launches, of which one is in flight at a time.

        None: it cannot be made at present, while the main stream is captured.
        """

    def recorded(self, key: Any, steps: Callable[[Any], None]) -> Callable[[Any, Any], bool] | None:
        """A call that is enqueued as one, for calls that differ in what they carry alone, of which one is in flight at a time.

        ``steps`` is called once, with an object that has a ``main`` stream, `forks`, `join`, ``launch(enqueue, carried)``
        for launches on the main stream and ``on_lane(enqueue, carried, stream)`` for the rest; what it enqueues there is not
        carried out. The answer takes the caller's stream and what a call carries, and enqueues the call, `in_order` under
        ``key``. It says whether it did; else, as of a stream that a graph captures, the call goes by its steps.
        None: this call is not to be enqueued as one.
        """

    def warm(
        self,
        kernel: Any,
        grid: Any,
        kwargs: dict[str, Any],
        *,
        leave_room: bool = False,
        later: Mapping[str, Place | None] = NONE_LATER,
    ) -> Callable[..., None]:
        """Compiles and loads what `launch` would run, without running it.

        With ``leave_room`` a kernel of one warp must be able to become resident beside the grid, else UnsupportedError.
        Returns ``enqueue(stream, carried, **replaced)``, a launch with its arguments bound. Those named in ``later`` are not
        kept: each launch finds them in what its call carries (`places`), or where no place is said takes them by name. They
        then have the dtype and the alignment to 16 bytes that ``kwargs`` shows; a descriptor changes its base alone.
        """

    def resident(self, kernel: Any, grid: Any, kwargs: dict[str, Any]) -> int:
        """How many programs of such a launch are resident on an idle device at a time; compiles the kernel."""

    def launch(self, kernel: Any, grid: Any, args: tuple[Any, ...], kwargs: dict[str, Any], stream: Any) -> None:
        """Launches a Triton kernel asynchronously."""

    def watch(self, state: Any, *, packets: bool = False) -> Callable[[], Any]:
        """Gives the waits on a state tensor a deadline (the setting ``deadline_s``); ``packets``: they are looks at packets.

        Returns a function that gives, without waiting for the device, the `FaultRecord` of a wait that gave up, or None.
        """

    def synchronize(self) -> None:
        """Blocks the host until all that the caller's stream holds is done."""

    def release(self) -> None:
        """Collective: gives back the symmetric memory whose tensors are gone."""
