#!/usr/bin/env python3
"""A hello server and its client in Python, over tern.py.

hello.py server [TRANSPORT [HOST:PORT]]   default: shm 127.0.0.1:31850; port 0 takes any free port, which it prints
hello.py client TRANSPORT URI [WHO]       asks a hello server, of whatever language, and prints the answer
"""
import signal
import sys

import tern

HELLO = 1  # a request type: client and server agree on it


def serve(transport="shm", address="127.0.0.1:31850"):
    with tern.Nexus(f"tern://{address}") as nexus, tern.Endpoint(nexus, transport=transport) as endpoint:

        def answer(request):
            space = request.response(len("hello, ") + len(request.view))  # tern's own memory: nothing is copied twice
            space[:7] = b"hello, "
            space[7:] = request.view
            request.respond()

        endpoint.on_request(HELLO, answer)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: endpoint.stop())
        print(f"serving over {transport} at {nexus.uri}", flush=True)
        endpoint.run()
        print(f"served {endpoint.counters()['requests_handled']} requests")


def ask(transport, uri, who="world"):
    listen = "tern://127.0.0.1:0" if uri.startswith("tern://127.") else "tern://0.0.0.0:0"
    with tern.Nexus(listen) as nexus, tern.Endpoint(nexus, transport=transport) as endpoint:
        print(endpoint.open_session(uri).ask(HELLO, who.encode()).decode())


def main():
    roles = {"server": serve, "client": ask}
    if len(sys.argv) < 2 or sys.argv[1] not in roles or (sys.argv[1] == "client" and len(sys.argv) < 4):
        sys.exit(__doc__)
    try:
        roles[sys.argv[1]](*sys.argv[2:])
    except tern.Error as error:
        sys.exit(f"hello.py: {error}")


if __name__ == "__main__":
    main()
