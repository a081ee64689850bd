"""Readings belong to the GPU they are shown for, and what cannot be read says why, and is never 0."""

import json
import threading
import time

import psutil
import pynvml
import pytest
from fake_nvml import FakeNvml, device, gpu, visible

from benchmarks import monitor as beside_smi
from cnnkit.notebook import devices, hosts, strips
from cnnkit.notebook.machine import Machine
from cnnkit.notebook.monitor import Monitor
from cnnkit.notebook.nvml import Identity, Nvml, Sample


def machine(fake, devices, identify):
    return Machine(devices, lambda: Nvml(fake, identify))


def only(fake, identify=None, stats=None):
    return machine(fake, [device(0, stats)], identify or visible(0)).samples()[0]


@pytest.mark.parametrize("shown", [(0, 1, 2), (2, 0), (1,)])
def test_visible_devices_cannot_shift_readings_to_another_gpu(shown):
    fake = FakeNvml(gpu(0), gpu(1), gpu(2))
    samples = machine(fake, [device(i) for i in range(len(shown))], visible(*shown)).samples()
    assert [s.values["utilization"] for s in samples[:-1]] == [10 * i + 5 for i in shown]
    assert [s.values["temperature"] for s in samples[:-1]] == [40 + i for i in shown]


def test_without_a_uuid_the_pci_address_finds_the_gpu():
    fake = FakeNvml(gpu(0), gpu(1))
    assert only(fake, lambda ordinal: Identity("", "0000:01:00.0")).values["power"] == 101
    assert only(fake, lambda ordinal: Identity("other", "0000:01:00.0")).values["power"] == 101


def test_memory_that_the_driver_keeps_for_itself_is_not_counted_as_used_where_the_driver_tells():
    assert only(FakeNvml(gpu(0))).values["memory_used"] == 10**9
    old = FakeNvml(gpu(0), without_v2=pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    assert only(old).values["memory_used"] == 10**9 + 676_331_520
    forbidden = only(FakeNvml(gpu(0), without_v2=pynvml.NVML_ERROR_NO_PERMISSION))
    assert forbidden.missing["memory_used"] == "no permission to read it"


def test_a_gpu_that_cannot_be_told_apart_is_not_guessed():
    def unknown(ordinal):
        raise OSError("no libcuda")

    sample = only(FakeNvml(gpu(0)), unknown)
    assert sample.values == {}
    assert sample.missing["utilization"] == "it cannot be told which GPU this is (no libcuda)"


def test_a_mig_slice_has_memory_of_its_own_and_no_utilization_rather_than_0():
    refused = pynvml.NVML_ERROR_NOT_SUPPORTED
    whole = gpu(0, mig=True)
    part = {"uuid": "MIG-m", "slice": True, "used": 3e9, "total": 20e9, "temperature": 41}
    part["fails"] = {"utilization": refused, "power": refused}
    sample = only(FakeNvml(whole, part), lambda ordinal: Identity("m", "0000:00:00.0"))
    assert sample.values == {"memory_used": 3e9, "memory_total": 20e9, "temperature": 41}
    assert set(sample.missing) == {"utilization", "power", "jax_memory", "jax_limit"}
    assert sample.missing["utilization"] == "MIG is on: NVML gives it for the whole GPU alone"
    assert strips.device_cells(sample)[0] == "n/a"


def test_a_reading_without_permission_is_named_and_the_others_stay():
    fake = FakeNvml(gpu(0, fails={"power": pynvml.NVML_ERROR_NO_PERMISSION}))
    sample = only(fake)
    assert sample.values["utilization"] == 5
    assert "power" not in sample.values
    assert strips.missing([sample])[0] == "GPU 0 NVIDIA Fake: power n/a: no permission to read it"


def test_a_gpu_that_vanishes_is_na_and_comes_back():
    fake = FakeNvml(gpu(0), gpu(1))
    all_ = machine(fake, [device(0), device(1)], visible(0, 1))
    assert all_.samples()[0].values["utilization"] == 5
    fake.gpus[0]["lost"] = pynvml.NVML_ERROR_GPU_IS_LOST
    lost, other, _ = all_.samples()
    assert lost.values == {}
    assert lost.missing["utilization"].startswith("the GPU is lost")
    assert other.values["utilization"] == 15
    gone = fake.gpus.pop(0)
    assert all_.samples()[0].missing["power"] == "the GPU is no longer there"
    fake.gpus.append(gone | {"lost": None, "utilization": 77})
    assert all_.samples()[0].values["utilization"] == 77


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "no NVIDIA driver is installed"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "the NVIDIA driver is not loaded"),
        (pynvml.NVML_ERROR_NO_PERMISSION, "no permission to read it"),
    ],
)
def test_without_a_driver_the_view_says_so_and_jax_memory_is_still_shown(code, text):
    fake = FakeNvml(init=code)
    sample = only(fake, stats={"bytes_in_use": 7e9, "bytes_limit": 60e9})
    assert sample.values == {"jax_memory": 7e9, "jax_limit": 60e9}
    assert sample.missing["utilization"] == text
    everything = Machine(None, lambda: Nvml(fake))
    assert everything.why_no_gpu == text
    assert [s.device for s in everything.samples()] == [f"CPU {psutil.cpu_count()} cores"]


def test_jax_memory_stands_beside_nvmls():
    sample = only(FakeNvml(gpu(0)), stats={"bytes_in_use": 2e9, "bytes_limit": 60e9})
    assert strips.device_cells(sample) == [
        "5 %",
        "1 GB of 80 GB, JAX 2 GB",
        "100 W",
        "40 °C",
    ]
    assert only(FakeNvml(gpu(0))).missing["jax_memory"] == "JAX keeps no memory figures for this device"


def test_other_accelerators_are_not_asked_of_nvml():
    sample = machine(FakeNvml(), [device(0, platform="tpu")], visible(0)).samples()[0]
    assert sample.device == "tpu 0 NVIDIA Fake"
    assert sample.missing["power"] == "NVML knows GPUs of NVIDIA alone"


def test_without_devices_every_gpu_is_read_and_jax_left_alone():
    fake = FakeNvml(gpu(0), gpu(1, name="NVIDIA H200"))
    first, second, _ = Machine(None, lambda: Nvml(fake)).samples()
    assert (first.device, second.device) == ("GPU 0 NVIDIA Fake", "GPU 1 NVIDIA H200")
    assert second.values["utilization"] == 15
    assert "jax_memory" not in second.values | second.missing


def test_the_cpu_shows_the_machine_and_this_process():
    cpu = Machine([], lambda: Nvml(FakeNvml())).samples()[-1]
    assert 0 < cpu.values["process_memory"] < cpu.values["memory_used"] < cpu.values["memory_total"]
    assert cpu.values["memory_total"] == psutil.virtual_memory().total


def test_a_monitor_samples_in_its_thread_and_closes_nvml_when_stopped():
    fake = FakeNvml(gpu(0))
    monitor = Monitor(machine(fake, [device(0)], visible(0)), seconds=0.01).start()
    while len(monitor.recent("GPU 0 NVIDIA Fake", "utilization")) < 3:
        time.sleep(0.01)
    assert fake.open == 1
    monitor.stop()
    assert fake.open == 0
    assert "cnnkit monitor" not in [thread.name for thread in threading.enumerate()]
    assert monitor.recent("GPU 0 NVIDIA Fake", "utilization")[-1] == 5


def test_a_monitor_sums_up_what_it_saw_and_skips_what_was_missing():
    fake = FakeNvml(gpu(0))
    monitor = Monitor(machine(fake, [device(0)], visible(0)))
    name = "GPU 0 NVIDIA Fake"
    for value in (20, 60, None, 100):
        fake.gpus[0]["utilization"] = value
        fake.gpus[0]["fails"] = {"utilization": pynvml.NVML_ERROR_UNKNOWN} if value is None else {}
        monitor.take()
    assert (monitor.mean(name, "utilization"), monitor.most(name, "utilization")) == (60, 100)
    recent = monitor.recent(name, "utilization")
    assert recent[:2] == [20, 60]
    assert recent[2] != recent[2]
    assert strips.summary_cells(monitor, name) == [
        "mean 60 %, most 100 %",
        "memory up to 1 GB",
        "mean 100 W",
        "up to 40 °C",
    ]


def test_a_failing_monitor_ends_alone_and_says_so():
    class Broken:
        closed = False

        def samples(self):
            raise RuntimeError("bad driver")

        def close(self):
            self.closed = True

    broken = Broken()
    monitor = Monitor(broken).start()
    while not broken.closed:
        time.sleep(0.01)
    assert monitor.failure == "the monitor ended: bad driver"


def test_processes_see_each_other_through_the_folder(tmp_path):
    samples = [
        Sample("GPU 0 X", {"utilization": 97.04, "memory_used": 12345678901.0}, {"power": "no permission"})
    ]
    hosts.Writer(tmp_path, 1)(samples)
    with (tmp_path / "monitor-1.jsonl").open("a") as file:
        file.write('{"time": 1, "torn')
    hosts.Writer(tmp_path, 0)(samples)
    (other,) = hosts.Others(tmp_path, me=0).read()
    assert other.name.startswith("process 1 on ")
    assert other.samples == [
        Sample("GPU 0 X", {"utilization": 97.0, "memory_used": 12345678901}, {"power": "no permission"})
    ]
    assert other.age < 5
    assert "97&nbsp;%" in strips.others_html([other])
    assert "silent for 40 s" in strips.others_html([other._replace(age=40.0)])


def test_a_process_writes_seldom_and_its_file_stays_small(tmp_path, monkeypatch):
    monkeypatch.setattr(hosts, "MOST_BYTES", 4000)
    sample = [Sample("GPU 0", {"utilization": 5.0}, {})]
    often = hosts.Writer(tmp_path, 0, seconds=60)
    for _ in range(5):
        often(sample)
    assert len((tmp_path / "monitor-0.jsonl").read_text().splitlines()) == 1
    always = hosts.Writer(tmp_path, 3, seconds=0)
    for i in range(200):
        always([Sample("GPU 0", {"utilization": float(i)}, {})])
    lines = (tmp_path / "monitor-3.jsonl").read_text().splitlines()
    assert sum(map(len, lines)) < 4200
    assert json.loads(lines[-1])["devices"][0]["values"]["utilization"] == 199


def test_a_folder_that_cannot_be_written_does_not_end_the_monitor(tmp_path):
    (tmp_path / "file").write_text("")
    hosts.Writer(tmp_path / "file", 0)([Sample("GPU 0", {"utilization": 5.0}, {})])
    assert hosts.Others(tmp_path / "nowhere", 0).read() == []


def view(fake, **options):
    return devices.Gpus(Monitor(Machine(None, lambda: Nvml(fake)), seconds=0.01), **options)


def test_gpus_prints_as_a_table_of_this_moment_and_leaves_no_thread(capsys):
    fake = FakeNvml(gpu(0), gpu(1, fails={"power": pynvml.NVML_ERROR_NO_PERMISSION}))
    shown = view(fake)
    print(shown)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "GPU 0 NVIDIA Fake: 5 %, memory 1 GB of 80 GB, 100 W, 40 °C"
    assert lines[1] == "GPU 1 NVIDIA Fake: 15 %, memory 2 GB of 80 GB, n/a, 41 °C"
    assert lines[-1] == "GPU 1 NVIDIA Fake: power n/a: no permission to read it"
    shown.stop()
    assert fake.open == 0
    assert repr(shown).startswith(lines[0])


def test_without_a_driver_gpus_says_why():
    shown = view(FakeNvml(init=pynvml.NVML_ERROR_LIBRARY_NOT_FOUND))
    assert "no GPU readings: no NVIDIA driver is installed" in repr(shown)
    assert "no NVIDIA driver is installed" in shown._repr_html_()
    shown.stop()


def test_gpus_moves_in_one_output_until_stopped_or_shown_anew(frontend):
    fake = FakeNvml(gpu(0))
    first = view(fake)
    first._ipython_display_()
    fake.gpus[0]["utilization"] = 77
    while "77 %" not in frontend.messages[-1].data["text/plain"]:
        time.sleep(0.01)
    second = view(FakeNvml(gpu(1)))
    second._ipython_display_()
    assert fake.open == 0
    second.stop()
    said = len(frontend.messages)
    time.sleep(0.05)
    assert len(frontend.messages) == said
    assert len(frontend.outputs()) == 2
    assert "cnnkit gpus" not in [thread.name for thread in threading.enumerate()]


def test_gpus_ends_by_itself_after_its_minutes(frontend):
    shown = view(FakeNvml(gpu(0)), minutes=0.0001)
    shown._ipython_display_()
    while not shown.monitor.ended:
        time.sleep(0.01)
    assert "utilization" in frontend.messages[-1].data["text/html"]


def test_gpus_shows_the_other_processes_of_a_run(tmp_path):
    hosts.Writer(tmp_path, 3)([Sample("GPU 0 far away", {"utilization": 64.0}, {})])
    shown = view(FakeNvml(gpu(0)), folder=tmp_path)
    assert "  GPU 0 far away: 64 %" in repr(shown)
    assert "process 3 on" in shown._repr_html_()
    shown.stop()


def test_the_benchmark_compares_readings_in_nvidia_smis_own_units():
    said = beside_smi.smi(
        "GPU-1, 90, 1024, 300.00, 40, 10240, 700.00\nGPU-2, [N/A], 4, [N/A], 30, 10240, 700.00"
    )
    ours = [
        {"utilization": 94, "memory_used": (1024 + used) * 2**20, "power": 314.0} for used in (0, 512, 1024)
    ]
    rows = {row["figure"]: row for row in beside_smi.rows_of("GPU 0", ours, [said["GPU-1"]] * 3)}
    got = {name: (row["value"], row["unit"], row["most"], row["points"]) for name, row in rows.items()}
    assert got == {
        "utilization_difference": (4, "points", 4, 4),
        "memory_difference": (512, "MiB", 1024, 5),
        "power_difference": (14, "W", 14, 2),
    }
    assert (rows["memory_difference"]["nvidia_smi"], rows["memory_difference"]["n"]) == (1024, 3)
    kept = beside_smi.rows_of("GPU 1", [{"utilization": 50, "temperature": 31}], [said["GPU-2"]])
    assert [(row["figure"], row["value"]) for row in kept] == [("temperature_difference", 1)]
