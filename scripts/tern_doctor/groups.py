"""Programs in process groups of their own, so that a script which ends early also ends what these programs have started.
It is in this package because an installation has no other; scripts/bench, compare and paper use it, too.
"""
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading

PATIENCE_SECONDS = 5

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)  # now, because the new process must not load anything
_held = None  # the signals that have arrived within signals_held(); None outside


def exit_on_signals():
    """From now on SIGTERM and SIGHUP raise SystemExit and SIGINT KeyboardInterrupt, unless they are ignored, as nohup
    ignores SIGHUP."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, lambda number, _: _raise(number) if _held is None else _held.append(number))


def _raise(number):
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(128 + number)


@contextlib.contextmanager
def signals_held():
    """Signals of exit_on_signals() that arrive meanwhile raise at the end. Otherwise one that arrives while a process
    starts would leave it behind, because nothing knows it yet."""
    global _held
    # Only the main thread is interrupted, and only the outermost of nested calls raises.
    if threading.current_thread() is not threading.main_thread() or _held is not None:
        yield
        return
    _held = []
    try:
        yield
    finally:
        arrived, _held = _held, None
        if arrived:
            _raise(arrived[0])


def _ends_with(parent):
    """For `preexec_fn`: the process gets SIGTERM when the thread that has started it ends, as by SIGKILL of the script."""
    def run():
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it has ended before
            os._exit(1)
    return run


def start(words, **options):
    """Starts a process in a group of its own. It ends with the calling thread, which must outlive it; with the option
    preexec_fn=None it may outlive a script that is killed, but starts sooner."""
    options.setdefault('preexec_fn', _ends_with(os.getpid()))
    return subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True, **options)


@contextlib.contextmanager
def started(words, **options):
    """Yields a process. The process and its group end if the body fails or a signal arrives."""
    with contextlib.ExitStack() as stack:
        with signals_held():
            process = stack.enter_context(start(words, **options))  # closes its pipes, and waits for its end
            stack.push(lambda kind, *_: end(process) if kind else None)
        yield process


def end(process):
    """Ends the process and its group: by SIGTERM, upon which scripts remove their files, or else by SIGKILL."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(PATIENCE_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
