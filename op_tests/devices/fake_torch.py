"""Stands for torch on a machine with GPUs: as much of it as devices are asked for."""

from types import SimpleNamespace


class _Uuid:
    def __init__(self, data):
        self.bytes = list(data)

    def __str__(self):
        digits = bytes(self.bytes).hex()
        return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def cuda_properties(number=0, **changes):
    return SimpleNamespace(
        **{
            "name": "NVIDIA H200",
            "major": 9,
            "minor": 0,
            "multi_processor_count": 132,
            "total_memory": 150754820096,
            "L2_cache_size": 60 << 20,
            "uuid": _Uuid(number.to_bytes(4, "big") + b"\xaa" * 12),
            "pci_domain_id": 0,
            "pci_bus_id": 0x1B + number,
            "pci_device_id": 0,
        }
        | changes
    )


def cuda_uuid(number=0):
    return f"GPU-{number:08x}-aaaa-aaaa-aaaa-aaaaaaaaaaaa"


def hip_properties(number=0, **changes):
    return cuda_properties(
        number,
        **{
            "name": "AMD Instinct MI300X",
            "major": 9,
            "minor": 4,
            "multi_processor_count": 304,
            "gcnArchName": "gfx942:sramecc+:xnack-",
            "L2_cache_size": 4 << 20,
            "uuid": _Uuid(b"%016x" % (0xABC0 + number)),
        }
        | changes,
    )


def fake_torch(*devices, hip=None, error=""):
    def init():
        if error:
            raise RuntimeError(error)

    return SimpleNamespace(
        __version__="2.11.0",
        version=SimpleNamespace(hip=hip, cuda=None if hip else "13.0"),
        cuda=SimpleNamespace(
            init=init,
            device_count=lambda: len(devices),
            get_device_properties=lambda index: devices[index],
            synchronize=lambda: None,
        ),
        zeros=lambda *size, device: None,
    )
