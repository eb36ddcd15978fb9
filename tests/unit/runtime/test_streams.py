"""Streams as torch knows them."""

from types import SimpleNamespace

import torch

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
