"""Processes that measure candidates and may die doing so.

::

    parent (one thread, one loop)                                worker (one process, own session)
    ┌──────────────────────────────────────────┐   private pipe   ┌───────────────────────────────┐
    │ Pool ── Lane 0 (device) ── Ledger (group) │ ── Open, Go ───▶ │ child: GroupBench             │
    │   │                        verdicts       │ ◀─ Started … ─── │   inputs → run → compare →    │
    │   │         ▲ sentinel, pipe, output      │ ◀─ Measured ──── │   time → verify               │
    │   │         └──────────── selector        │                  └───────────────────────────────┘
    │   └──── Lane 1 (device) ── …              │                  ┌───────────────────────────────┐
    │   spawner (one thread that lives as long) │                  │ standby: torch is imported,   │
    └──────────────────────────────────────────┘                  │ no device touched             │
                                                                   └───────────────────────────────┘

* The **pool** owns one **lane** per device and runs the loop; it runs no candidate code and creates no device context.
* A **lane** has at most one **worker**. When that dies or is killed, the lane's **standby** takes its place.
* A worker does what it is told, one candidate at a time: the next *Go* comes only when the last result is on disk.
* The **ledger** of a group decides, without any I/O, what a fault means for the candidates of the group.

Modules: ``messages`` (what is said), ``child`` (the worker's side), ``process`` (one worker seen from the parent),
``lane`` (states and clocks), ``ledger`` (verdicts), ``watcher`` (what a caller may observe), ``pool`` (the loop).
"""
