"""Programs in process groups of their own, so that a script which ends early also ends what these programs have started."""
import contextlib
import os
import signal
import subprocess
import sys

PATIENCE_SECONDS = 5


def exit_on_signals():
    """From now on SIGTERM and SIGHUP raise SystemExit, unless they are ignored, as nohup ignores SIGHUP."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, lambda number, _: sys.exit(128 + number))


def start(words, **options):
    return subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True, **options)


def end(process):
    """Ends the process and its group: by SIGTERM, upon which scripts remove their files, or else by SIGKILL."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(PATIENCE_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
