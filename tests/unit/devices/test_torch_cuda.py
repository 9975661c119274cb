"""torch.cuda and torch.accelerator see the virtual GPUs."""

import pytest
import torch

pytestmark = pytest.mark.usefixtures("machine")

CUDA_1 = torch.device("cuda", 1)


def test_counting_and_naming():
    assert torch.cuda.is_available()
    assert torch.accelerator.is_available()
    assert torch.cuda.device_count() == torch.accelerator.device_count() == 3
    assert torch.accelerator.current_accelerator() == torch.device("cuda")
    torch.cuda.init()
    assert torch.cuda.get_device_properties("cuda:1").total_memory == 2**30
    assert torch.cuda.can_device_access_peer(0, 1)
    assert torch.cuda.is_bf16_supported()


def test_the_current_gpu():
    assert torch.cuda.current_device() == torch.accelerator.current_device_index() == 0
    with torch.cuda.device(1):
        assert torch.cuda.current_device() == 1
        with torch.accelerator.device_index(2):
            assert torch.cuda.current_device() == 2
        with torch.cuda.device(-1):
            assert torch.cuda.current_device() == 1
    torch.accelerator.set_device_index(2)
    assert torch.cuda.current_device() == 2
    torch.cuda.set_device(-1)
    assert torch.cuda.current_device() == 2
    torch.cuda.set_device(0)
    with pytest.raises(ValueError, match="Expected a cuda device, but got: cpu"):
        torch.cuda.memory_allocated("cpu")


def test_streams_select_their_gpu_and_give_it_back():
    stream = torch.cuda.Stream(device=1)
    before = torch.cuda.current_stream(1)
    with torch.cuda.stream(stream):
        assert torch.cuda.current_stream(1) == stream
        assert torch.cuda.current_device() == 1
        made = torch.ones(2, device="cuda")
        made.record_stream(stream)
    assert made.device == CUDA_1
    assert (torch.cuda.current_device(), torch.cuda.current_stream(1)) == (0, before)
    with stream:
        assert torch.cuda.current_stream() == stream
    assert torch.cuda.current_device() == 0
    assert torch.cuda.default_stream(1).device == CUDA_1
    assert stream != torch.cuda.Stream(device=1)
    assert torch.Stream(device="cuda:2").device.index == 2
    torch.cuda.set_stream(stream)
    assert torch.cuda.current_stream(1) == stream


def test_streams_and_events_keep_their_order():
    torch.cuda.synchronize(device="cuda:2")
    torch.accelerator.synchronize()
    stream, other = torch.cuda.Stream(), torch.cuda.Stream()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(True)
    start.record()
    other.wait_event(start)
    other.wait_stream(stream)
    stream.record_event(end)
    end.synchronize()
    end.wait(other)
    assert start.elapsed_time(end) >= 0
    assert all(each.query() for each in (start, end, stream, other))
    stream.synchronize()
    with pytest.raises(ValueError, match="enable_timing"):
        torch.cuda.Event().elapsed_time(end)


def test_what_programs_ask_of_a_gpu():
    properties = torch.cuda.get_device_properties(1)
    assert properties.gcnArchName == properties.name == torch.cuda.get_device_name(1)
    assert (properties.warp_size, properties.max_threads_per_multi_processor) == (32, 2048)
    assert not properties.is_integrated
    assert torch.cuda.Stream.priority_range() == (0, -3)
    assert torch.cuda.get_allocator_backend() == "native"
    torch.cuda.set_sync_debug_mode("default")
    assert torch.cuda.get_sync_debug_mode() == 0


def test_allocations_that_did_not_fit_are_counted():
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(2**50, device="cuda:1")
    assert [torch.cuda.memory_stats(i)["num_ooms"] for i in range(2)] == [0, 1]
    torch.cuda.reset_accumulated_memory_stats(1)
    assert torch.cuda.memory_stats(1)["num_ooms"] == 0


@pytest.mark.parametrize(
    "name",
    [
        *("caching_allocator_enable", "device_memory_used", "graph_pool_handle"),
        *("host_memory_stats", "host_memory_stats_as_nested_dict", "list_gpu_processes"),
        *("memory_stats_as_nested_dict", "reset_accumulated_host_memory_stats"),
        "reset_peak_host_memory_stats",
    ],
)
def test_functions_that_ask_the_driver_are_refused(name):
    with pytest.raises(RuntimeError, match="virtual GPUs have no"):
        getattr(torch.cuda, name)()


@pytest.mark.parametrize("options", [{"use_device": "cuda"}, {"use_cuda": True}])
def test_the_profiler_of_autograd_sees_operators(options, recwarn):
    with torch.autograd.profiler.profile(use_kineto=True, use_cpu=False, **options) as profile:
        torch.ones(2, device="cuda:1") + 1
    assert "aten::add" in {event.key for event in profile.key_averages()}
    assert not recwarn


def test_tools_that_watch_a_program_have_nothing_to_do():
    torch.cuda.nvtx.mark("here")
    with torch.cuda.nvtx.range("step {}", 1), torch.cuda.profiler.profile():
        torch.ones(1, device="cuda:1")
    torch.cuda.nvtx.range_end(torch.cuda.nvtx.range_start("step"))
    torch.cuda.cudart().cudaProfilerStart()
    torch.cuda.cudart().cudaProfilerStop()
