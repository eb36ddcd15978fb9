"""Streams as torch knows them, and what a runtime does on one that is captured."""

from types import SimpleNamespace

import pytest
import torch

from overlap.errors import RuntimeContractError
from overlap.runtime.cuda.driver import Stream
from overlap.runtime.cuda.runtime import CudaRuntime, as_torch

DEVICE = torch.device("cuda", 3)


def test_the_default_stream_is_torchs_and_no_new_one(monkeypatch):
    """`ExternalStream` of a null handle is a stream from torch's pool: marks on it were in no order with the default stream."""
    monkeypatch.setattr(torch.cuda, "default_stream", lambda device: ("default", device))
    monkeypatch.setattr(torch.cuda, "ExternalStream", lambda handle, device: (handle, device))
    assert as_torch(Stream(0), DEVICE) == ("default", DEVICE)
    assert as_torch(Stream(0x7F00), DEVICE) == (0x7F00, DEVICE)


def test_a_mark_is_recorded_on_its_stream(monkeypatch):
    recorded = []
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: SimpleNamespace(record=recorded.append))
    monkeypatch.setattr(torch.cuda, "default_stream", lambda device: "default")
    monkeypatch.setattr(torch.cuda, "ExternalStream", lambda handle, device: "another")
    runtime = object.__new__(CudaRuntime)
    runtime.device = DEVICE
    runtime.mark(Stream(0))
    assert recorded == ["default"]


def test_no_table_is_made_while_a_graph_is_captured(monkeypatch):
    runtime = object.__new__(CudaRuntime)
    runtime.rank, runtime.device = 1, torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(
        RuntimeContractError, match="rank 1: a table of a launch while a CUDA graph is captured"
    ) as caught:
        runtime.table([1, 2])
    assert "call once with this shape on all ranks before capturing" in caught.value.help
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    assert runtime.table([1, 2]).tolist() == [1, 2]
