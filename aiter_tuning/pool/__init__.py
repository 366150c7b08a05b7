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

Modules: ``pool`` (what stays open between runs), ``run`` (the loop), ``handout`` (groups on their lanes), ``feed``
(groups on their way there), ``lane`` (states and clocks), ``ledger`` (verdicts), ``watcher`` (what a caller may
observe); ``process`` (one worker seen from the parent), ``channel``, ``messages`` (what is said, and how), ``board``
(what is shown); ``child`` and ``finals`` (the worker's side, contests in it), ``parent_death`` (its end with its
parent's); ``precompiler``, ``compile_server``, ``compile_book`` (compiling ahead).
"""
