"""Stands for ``pynvml`` on a host with any GPUs; names and results as nvidia-ml-py has them."""

from types import SimpleNamespace


class NVMLError(Exception):
    pass


class FakeGpu(SimpleNamespace):
    """One GPU, or a MIG instance of one where ``whole`` is set."""

    def __init__(self, index, model="NVIDIA H200", capability=(9, 0), cores=132 * 128, **more):
        more = {"uuid": f"GPU-{index:08x}-aaaa-bbbb-cccc-0123456789ab", "bus": 0x10 + index} | more
        super().__init__(model=model, capability=capability, cores=cores, mig=None, whole=None, **more)
        self.clocks = {1: 1980, 2: 3201}
        self.temperature = 45
        self.reasons = 0
        self.processes = []


class FakeNvml:
    NVMLError = NVMLError
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    def __init__(self, *gpus, instances=(), driver="580.95.05"):
        self.gpus, self.instances, self.driver = list(gpus), list(instances), driver
        self.open = 0
        self.broken = ""

    def nvmlInit(self):
        self._check()
        self.open += 1

    def nvmlShutdown(self):
        self.open -= 1

    def _check(self):
        if self.broken:
            raise NVMLError(self.broken)

    def nvmlSystemGetDriverVersion(self):
        return self.driver

    def nvmlDeviceGetCount(self):
        assert self.open
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index):
        return self.gpus[index]

    def nvmlDeviceGetHandleByUUID(self, uuid):
        self._check()
        return self._one(gpu for gpu in (*self.gpus, *self.instances) if gpu.uuid.lower() == uuid.lower())

    def nvmlDeviceGetHandleByPciBusId(self, pci):
        return self._one(gpu for gpu in self.gpus if f"0000:{gpu.bus:02x}:00.0" == pci)

    @staticmethod
    def _one(gpus):
        for gpu in gpus:
            return gpu
        raise NVMLError("Not Found")

    def nvmlDeviceGetName(self, gpu):
        return gpu.model

    def nvmlDeviceGetUUID(self, gpu):
        return gpu.uuid

    def nvmlDeviceGetMigMode(self, gpu):
        if gpu.mig is None:
            raise NVMLError("Not Supported")
        return [gpu.mig, gpu.mig]

    def nvmlDeviceIsMigDeviceHandle(self, gpu):
        return int(gpu.whole is not None)

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, gpu):
        return gpu.whole

    def nvmlDeviceGetAttributes(self, gpu):
        return SimpleNamespace(multiprocessorCount=gpu.units)

    def nvmlDeviceGetCudaComputeCapability(self, gpu):
        return list(gpu.capability)

    def nvmlDeviceGetNumGpuCores(self, gpu):
        return gpu.cores

    def nvmlDeviceGetPciInfo(self, gpu):
        return SimpleNamespace(domain=0, bus=gpu.bus, device=0)

    def nvmlDeviceGetMemoryInfo(self, gpu):
        return SimpleNamespace(total=141 << 30)

    def nvmlDeviceGetClockInfo(self, gpu, which):
        return gpu.clocks[which]

    def nvmlDeviceGetTemperature(self, gpu, sensor):
        if gpu.temperature is None:
            raise NVMLError("Not Supported")
        return gpu.temperature

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, gpu):
        return gpu.reasons

    def nvmlDeviceGetComputeRunningProcesses(self, gpu):
        return [SimpleNamespace(pid=pid, usedGpuMemory=memory) for pid, memory in gpu.processes]
