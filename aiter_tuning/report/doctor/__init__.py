"""``aiter-tune doctor``: would tuning on this machine, now, tell the truth?

::

    gather ─┬─ host, files, packages ──▶┐
            ├─ lock_trial  two processes, one lock
            ├─ gpus        settings and conditions   ├──▶ Facts ──▶ findings ──▶ Finding(verdict, found, advice)
            └─ trial       a worker starts, and times one kernel against itself
                                        └▶           │                  └──▶ page: text, JSON, exit code
                                                   frozen

Gathering touches the machine and decides nothing; the findings are functions of the facts, so that every one of them
can be tested without the machine that it is about.
"""
