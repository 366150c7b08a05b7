"""Processes that measure candidates and may die doing so.

::

    parent (one thread, one loop)                                worker (one process, own session)
    ┌──────────────────────────────────────────┐   private pipe   ┌───────────────────────────────┐
    │ Pool ── Lane 0 (device) ── Ledger (group) │ ── Open, Go ───▶ │ child: GroupBench             │
    │   │         ▲              verdicts       │ ◀─ Measured ──── │   inputs → run → compare →    │
    │   │         └─ selector: pipe, sentinel   │ ◁─ board ─────── │   time → verify               │
    │   │                                       │   (shared memory)│   logbook ─▶ checkpoint       │
    │   │                                       │                  └───────────────────────────────┘
    │   └──── Lane 1 (device) ── …              │                  ┌───────────────────────────────┐
    │   spawner (one thread that lives as long) │                  │ standby: torch is imported,   │
    └──────────────────────────────────────────┘                  │ no device touched             │
                                                                   └───────────────────────────────┘

* The **pool** owns one **lane** per device and runs the loop; it runs no candidate code and creates no device context.
* A **lane** has at most one **worker**. When that dies or is killed, the lane's **standby** takes its place.
* A worker goes through its group by itself. What it is doing stands on its **board**, which the parent reads when a
  clock may have run out or the worker is dead; around each candidate it writes its rows with the group's logbook.
  Without ``Watcher.run_ahead`` it waits for a *Go* after each result instead.
* The **ledger** of a group decides, without any I/O, what a fault means for the candidates of the group.

Modules: ``channel``, ``messages`` (what is said, and how), ``board`` (what is shown), ``child`` (the worker's side),
``process`` (one worker seen from the parent), ``lane`` (states and clocks), ``ledger`` (verdicts), ``feed`` (groups on
their way), ``watcher`` (what a caller may observe), ``run`` (the loop), ``pool`` (what stays open between runs);
``precompiler``, ``compile_server``, ``compile_book`` (compiling ahead).
"""
