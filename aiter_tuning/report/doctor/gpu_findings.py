"""What a GPU's state means for its times."""

from __future__ import annotations

from aiter_tuning.devices.conditions import Reading
from aiter_tuning.devices.gpu_settings import GpuSettings
from aiter_tuning.report.doctor.facts import Finding, GpuFindings, Verdict

HOT_C = 85
_BUSY_PCT = 5
_HOT_REASONS = ("thermal", "slowdown", "brake")


def gpu_findings(gpu: GpuFindings) -> list[Finding]:
    """Clocks, throttling, temperature, other processes, settings."""
    name = gpu.device.name
    findings = []
    if gpu.problem:
        findings.append(
            Finding(
                name,
                Verdict.warning,
                f"cannot be watched: {gpu.problem}",
                "throttling and processes of others will go unnoticed: install nvidia-ml-py, on ROCm amdsmi",
            )
        )
    findings += _conditions(name, gpu)
    findings += _foreign(name, gpu)
    if gpu.settings is not None:
        findings += settings_findings(name, gpu.settings)
    return findings


def _conditions(name: str, gpu: GpuFindings) -> list[Finding]:
    readings = [reading for reading in (gpu.before, gpu.after) if reading is not None]
    if not readings:
        return []
    last = readings[-1]
    found = ", ".join(filter(None, (_clock(last, gpu.settings), _temperature(last))))
    reasons = sorted({reason for reading in readings for reason in reading.throttle})
    topic = f"{name} clocks"
    if any(word in reason for reason in reasons for word in _HOT_REASONS):
        return [Finding(topic, Verdict.bad, f"{found}; held back: {', '.join(reasons)}", "cool it, or wait")]
    if reasons:
        return [
            Finding(
                topic,
                Verdict.warning,
                f"{found}; held back: {', '.join(reasons)}",
                "long kernels run slower than short ones: lock the clocks (`nvidia-smi -lgc`) for times that last",
            )
        ]
    if (last.temperature_c or 0) >= HOT_C:
        return [Finding(topic, Verdict.warning, found, "it will soon be held back: cool it, or wait")]
    return [Finding(topic, Verdict.ok, found or "not told")]


def _clock(reading: Reading, settings: GpuSettings | None) -> str:
    if reading.sm_mhz is None:
        return ""
    most = settings.max_sm_mhz if settings is not None else None
    return f"{reading.sm_mhz} MHz now" + (f" of {most}" if most else "")


def _temperature(reading: Reading) -> str:
    return "" if reading.temperature_c is None else f"{reading.temperature_c} °C"


def _foreign(name: str, gpu: GpuFindings) -> list[Finding]:
    if gpu.before is None:
        return []
    busy = gpu.settings.utilisation_pct if gpu.settings is not None else None
    topic = f"{name} processes"
    if not gpu.foreign:
        if busy is not None and busy > _BUSY_PCT:
            return [
                Finding(
                    topic,
                    Verdict.bad,
                    f"it is busy for {busy} % of the time, by processes that cannot be seen from here",
                    "look on the host, outside this container, and wait until they have ended",
                )
            ]
        return [Finding(topic, Verdict.ok, "nobody else is on it")]
    found = f"others are on it: {', '.join(gpu.foreign)}"
    if busy is not None and busy <= _BUSY_PCT:
        return [
            Finding(topic, Verdict.warning, f"{found}; idle now", "times are marked `foreign`; end them if you can")
        ]
    return [Finding(topic, Verdict.bad, found, "their work is timed along: wait until they have ended")]


def settings_findings(name: str, settings: GpuSettings) -> list[Finding]:
    """Persistence, ECC, power limit, compute mode."""
    findings = []
    topic = f"{name} settings"
    if settings.persistence is False:
        findings.append(
            Finding(
                topic,
                Verdict.warning,
                "persistence mode is off",
                "the driver is loaded anew for each first worker: `nvidia-smi -pm 1`",
            )
        )
    if settings.uncorrected_errors:
        findings.append(
            Finding(
                topic,
                Verdict.bad,
                f"{settings.uncorrected_errors} uncorrected memory errors since the driver was loaded",
                "wrong results may be the memory's: reset or replace this GPU",
            )
        )
    limit, default = settings.power_limit_w, settings.default_power_limit_w
    if limit is not None and default is not None and limit < default:
        findings.append(
            Finding(
                topic,
                Verdict.warning,
                f"its power limit is {limit:.0f} W, {default:.0f} W by default",
                "what is fastest under this limit may not be without it: tune under the limit that you serve with",
            )
        )
    if settings.compute_mode == "prohibited":
        findings.append(Finding(topic, Verdict.bad, "its compute mode is prohibited", "`nvidia-smi -c 0`"))
    if not findings:
        known = {
            "persistence mode": settings.persistence,
            "ECC": settings.ecc,
        }
        text = ", ".join(f"{what} {'on' if value else 'off'}" for what, value in known.items() if value is not None)
        more = f"compute mode {settings.compute_mode}" if settings.compute_mode else ""
        found = ", ".join(filter(None, (text, more)))
        if found:
            findings.append(Finding(topic, Verdict.ok, found))
    return findings
