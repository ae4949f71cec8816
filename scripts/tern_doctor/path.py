"""The path to another host: its route; loss, round trip and MTU by ICMP echo; the answer to UDP at its port; and RPCs
with a tern server there. This file collects facts only; path_rules.py judges them.
"""
import contextlib
import errno
import json
import os
import select
import socket
import statistics
import struct
import time

from . import proof

DEFAULT_PORT = 31850
ECHOES = 20
ECHO_SECONDS_MAX = 0.5
KNOCKS = 3  # after several answers a host answers a closed port only once a second (net.ipv4.icmp_ratelimit)
MTU_MIN = 576
# Linux: IP_MTU_DISCOVER and IPV6_MTU_DISCOVER; PROBE forbids fragments and ignores earlier ICMP messages.
MTU_DISCOVER = {socket.AF_INET: (socket.IPPROTO_IP, 10), socket.AF_INET6: (socket.IPPROTO_IPV6, 23)}
PROBE = 3
FAMILY_NAMES = {socket.AF_INET: 'ip', socket.AF_INET6: 'ip6'}  # as nft calls them
HEADER_BYTES = {'ip': 28, 'ip6': 48}  # of IP and ICMP, and of IP and UDP


def parse_host(text):
    """(host, port) of HOST, HOST:PORT or [IPV6]:PORT, with or without tern:// and /E. ValueError has an error
    message."""
    rest = text.removeprefix('tern://').partition('/')[0]
    if rest.startswith('['):
        host, bracket, port = rest[1:].partition(']')
        if not bracket or (port and not port.startswith(':')):
            raise ValueError(f'--to={text} is not HOST or HOST:PORT')
        port = port[1:]
    elif rest.count(':') > 1:
        host, port = rest, ''
    else:
        host, _, port = rest.partition(':')
    if not host or (port and not (port.isdigit() and 0 < int(port) < 65536)) or rest == f'{host}:':
        raise ValueError(f'--to={text} is not HOST or HOST:PORT')
    return host, int(port or DEFAULT_PORT)


def resolve(host):
    """(family, address): the one that tern tries first, the resolver's first of IPv4 if there is one; None: the host is
    unknown."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return None
    found = [(one[0], one[4][0]) for one in found if one[0] in MTU_DISCOVER]
    return min(found, key=lambda one: one[0] != socket.AF_INET, default=None)


def route(look, family, address, port):
    """'error' (errno's name), or 'source', and if the program ip is installed 'device' and 'gateway'."""
    with socket.socket(family, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect((address, port))
            found = {'source': asking.getsockname()[0]}
        except OSError as error:
            return {'error': errno.errorcode.get(error.errno, str(error.errno))}
    done = look.run('ip', '-json', 'route', 'get', address)
    with contextlib.suppress(ValueError, IndexError, TypeError, KeyError):
        if done and done[0] == 0:
            first = json.loads(done[1])[0]
            found.update({key: first[name] for key, name in (('device', 'dev'), ('gateway', 'gateway'))
                          if name in first})
    return found


# --- ICMP echo -------------------------------------------------------------------------------------------------------

def checksum(data):
    data += bytes(len(data) % 2)
    total = sum(struct.unpack(f'!{len(data) // 2}H', data))
    total = (total >> 16) + (total & 0xffff)
    return ~(total + (total >> 16)) & 0xffff


class Echo:
    """Sends echo requests to a host, by an ICMP socket or a raw socket. OSError: neither socket is permitted."""

    def __init__(self, family, address):
        self.family, self.address, self.sequence = family, address, 0
        protocol = socket.IPPROTO_ICMP if family == socket.AF_INET else socket.IPPROTO_ICMPV6
        self.is_raw = False
        try:
            self.socket = socket.socket(family, socket.SOCK_DGRAM, protocol)
        except OSError:
            self.socket = socket.socket(family, socket.SOCK_RAW, protocol)
            self.is_raw = True
        level, option = MTU_DISCOVER[family]
        self.socket.setsockopt(level, option, PROBE)
        self.identifier = os.getpid() & 0xffff

    def close(self):
        self.socket.close()

    def ask(self, packet_bytes, seconds_max=ECHO_SECONDS_MAX):
        """Round trip in seconds of an IP packet of this size; None: no answer, or the packet cannot be sent."""
        self.sequence = self.sequence + 1 & 0xffff
        kinds = (8, 0) if self.family == socket.AF_INET else (128, 129)
        head = struct.pack('!BBHHH', kinds[0], 0, 0, self.identifier, self.sequence)
        payload = bytes(max(packet_bytes - HEADER_BYTES[FAMILY_NAMES[self.family]], 0))
        head = head[:2] + struct.pack('!H', checksum(head + payload)) + head[4:]
        begin = time.monotonic()
        try:
            self.socket.sendto(head + payload, (self.address, 0))
            while True:
                left = begin + seconds_max - time.monotonic()
                if left <= 0 or not select.select([self.socket], [], [], left)[0]:
                    return None
                answer = self.socket.recv(65536)
                if self.is_raw and self.family == socket.AF_INET:
                    answer = answer[(answer[0] & 15) * 4:]
                is_mine = not self.is_raw or answer[4:6] == head[4:6]
                if len(answer) >= 8 and answer[0] == kinds[1] and is_mine and answer[6:8] == head[6:8]:
                    return time.monotonic() - begin
        except OSError:
            return None


def path_mtu(echo, device_mtu, seconds_max):
    """The largest IP packet that is answered, by bisection; None: not even MTU_MIN bytes are answered."""
    def passes(size):
        return any(echo.ask(size, seconds_max) is not None for _ in range(2))

    if passes(device_mtu):
        return device_mtu
    low, high = MTU_MIN, device_mtu
    if not passes(low):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if passes(middle) else (low, middle)
    return low


def echoes(look, family, address, device_mtu):
    """'sent', 'lost', round trips and 'mtu'; None: no socket is permitted."""
    try:
        echo = Echo(family, address)
    except OSError:
        look.note_unseen('ICMP echo: this user has no socket for it (sysctl net.ipv4.ping_group_range, or root)')
        return None
    with contextlib.closing(echo):
        trips = []
        for number in range(ECHOES):
            trips.append(echo.ask(64))
            if number == 2 and trips == [None] * 3:
                return {'sent': 3, 'lost': 3, 'p50_us': None, 'min_us': None, 'mtu': None}
            time.sleep(0.005)
        heard = [trip for trip in trips if trip is not None]
        patience = min(max(4 * max(heard), 0.05), ECHO_SECONDS_MAX)
        mtu = path_mtu(echo, min(device_mtu or 1500, 65535), patience)
        return {'sent': len(trips), 'lost': len(trips) - len(heard), 'p50_us': statistics.median(heard) * 1e6,
                'min_us': min(heard) * 1e6, 'mtu': mtu}


# --- UDP -------------------------------------------------------------------------------------------------------------

def knock(family, address, port):
    """The answer to a datagram that is not tern's: 'refused', 'forbidden', 'unreachable', 'silent'."""
    with socket.socket(family, socket.SOCK_DGRAM) as knocking:
        knocking.settimeout(ECHO_SECONDS_MAX)
        for _ in range(KNOCKS):
            try:
                knocking.connect((address, port))
                knocking.send(b'?')
                knocking.recv(1)
                break
            except ConnectionRefusedError:
                return 'refused'
            except PermissionError:
                return 'forbidden'
            except TimeoutError:
                pass
            except OSError as error:
                return 'forbidden' if error.errno == errno.EACCES else 'unreachable'
    return 'silent'


def facts_of(look, facts, host, port, options):
    """`options`: transports to try, program, seconds and transport options."""
    found = {'host': host, 'port': port, 'address': None, 'route': {}, 'device_mtu': None, 'echo': None, 'knock': None,
             'exchanges': {}}
    resolved = resolve(host)
    if resolved is None:
        return found
    family, address = resolved
    found.update(address=address, family=FAMILY_NAMES[family],
                 route=route(look, family, address, port))
    if 'error' in found['route']:
        return found
    device = found['route'].get('device')
    if device is None:
        device = next((one['name'] for one in facts['interfaces'] if found['route']['source'] in one['addresses']),
                      None)
        found['route']['device'] = device
    found['device_mtu'] = next((one['mtu'] for one in facts['interfaces'] if one['name'] == device), None)
    found['echo'] = echoes(look, family, address, found['device_mtu'])
    if not options.program:
        found['knock'] = knock(family, address, port)
    else:
        server = f'[{address}]:{port}' if family == socket.AF_INET6 else f'{address}:{port}'
        for name in options.transports:
            words = proof.common_words(options.program, name, options.seconds, options.transport_options, '')
            found['exchanges'][name] = proof.run([*words, '--role=client', f'--server={server}'], options.seconds)
    return found
