"""Judges the facts of path.py: findings about 'path'."""
import re

from . import firewall
from .path import HEADER_BYTES
from .rules import HINT, STOP, Finding
from .transport_rules import UDP_FRAME_BYTES

LOSS_SHARE_MAX = 0.001

ANY_ADDRESS = {'ip': '0.0.0.0', 'ip6': '[::]'}
# The messages of tern's client, in order: (pattern, finding, command). {host}, {port}, {any} (ANY_ADDRESS) and the
# pattern's groups may be named.
SERVER = 'tern-latency --role=server --transport={transport} --server={any}:{port}'
OPEN_DATA = (SERVER + ' --transport_options=bind={any}:31851  # there, with: '
             'nft insert rule inet filter input udp dport 31851 accept')
OPEN_PORT = 'nft insert rule inet filter input udp dport {port} accept  # on {host}'
SENTENCES = (
    (r'nothing listens at', 'No tern server listens at UDP port {port} of {host}.', SERVER + '  # on {host}'),
    (r'a firewall refuses what is sent to', 'A firewall rejects what is sent to UDP port {port} of {host}.', OPEN_PORT),
    (r'no host answers at', 'No host answers at {address}.', 'ip neighbour show {address}'),
    (r'no route to', 'No route leads to {address}.', 'ip route get {address}'),
    (r'a firewall of this host blocks packets', 'A firewall of this host blocks packets to the server\'s data port.',
     'nft insert rule inet filter output udp accept'),
    (r'short packets pass the data path, but packets of (\d+) bytes do not',
     'Short packets reach {host}, and packets of {0} bytes do not{mtu_text}.', '{mtu_command}'),
    (r'packets to the server\'s data port are rejected.*UDP port (\d+)',
     'A firewall rejects what is sent to the data port of the server on {host}, UDP port {0}.', OPEN_DATA),
    (r'no answer came on the data path: packets to UDP port (\d+)',
     'Management reaches {host}, but a firewall drops what is sent to the server\'s data port, UDP port {0}.',
     OPEN_DATA),
)


def shorter_datagrams(mtu, family):
    fitting = max(mtu - HEADER_BYTES[family], 576)
    return f'tern-latency --transport_options=datagram_bytes={fitting}  # at both ends, or raise the MTU'


def mended(path, name, why):
    """The sentence and the command for a message of tern's client over this transport."""
    host, mtu = path['host'], (path['echo'] or {}).get('mtu')
    words = {'host': host, 'port': path['port'], 'address': path['address'], 'transport': name,
             'any': ANY_ADDRESS[path['family']],
             'mtu_text': f': the smallest MTU on the path is {mtu}' if mtu else '',
             'mtu_command': (shorter_datagrams(mtu, path['family']) if mtu
                             else 'ip link set DEV mtu 1500  # of the narrow link')}
    for pattern, text, command in SENTENCES:
        found = re.search(pattern, why)
        if found:
            return text.format(*found.groups(), **words), command.format(**words)
    if 'no answer from' in why and 'connect_timeout' in why:
        if path['echo'] and path['echo']['lost'] < path['echo']['sent']:
            return (f'{host} answers to ping, and nothing comes back from its UDP port {path["port"]}: a firewall '
                    'drops it.', OPEN_PORT.format(**words))
        return (f'Nothing comes back from {host}, neither to ping nor from UDP port {path["port"]}: it is down, '
                'or a firewall drops both.', f'ip neighbour show {path["address"]}; traceroute {path["address"]}')
    return f'Over {name}, the client says: {why}.', None


def judge(path, facts):
    def add(level, text, command):
        findings.append(Finding('path', level, text, command))

    findings = []
    host, port = path['host'], path['port']
    if path['address'] is None:
        add(STOP, f'No address is known for {host}.', f'getent hosts {host}')
        return findings
    if 'error' in path['route']:
        add(STOP, f'No route leads to {path["address"]} ({path["route"]["error"]}).',
            f'ip route add {path["address"]} via GATEWAY dev DEV')
        return findings
    judge_way(path, facts, add)
    for name, exchange in path['exchanges'].items():
        judge_exchange(path, name, exchange, add)
    if not path['exchanges']:
        if path['knock'] == 'refused':
            add(STOP, f'Nothing listens at UDP port {port} of {host}.',
                SERVER.format(transport='udp', port=port, any=ANY_ADDRESS[path['family']]) + f'  # on {host}')
        elif path['knock'] == 'forbidden':
            add(STOP, f'A firewall rejects what is sent to UDP port {port} of {host}.',
                OPEN_PORT.format(port=port, host=host))
        elif path['knock'] == 'unreachable':
            add(STOP, f'No host answers at {path["address"]}.', f'ip neighbour show {path["address"]}')
    return findings


def judge_way(path, facts, add):
    """Judges what needs no tern server: loss and MTU by echoes, and the rules of this host's firewall."""
    host, echo = path['host'], path['echo']
    if echo and 0 < echo['lost'] < echo['sent']:
        add(HINT, f'{echo["lost"]} of {echo["sent"]} ICMP echoes to {host} were lost.',
            f'mtr --report {path["address"]}')
    if echo and echo['mtu']:
        if echo['mtu'] < UDP_FRAME_BYTES:
            if not path['exchanges']:  # otherwise its client has the same message
                add(HINT, f'IP packets of more than {echo["mtu"]} bytes do not reach {host}, and tern\'s datagrams '
                          f'take {UDP_FRAME_BYTES} by default.', shorter_datagrams(echo['mtu'], path['family']))
        elif path['device_mtu'] and echo['mtu'] < min(path['device_mtu'], 65535):
            add(HINT, f'{path["route"]["device"]} sends packets of {path["device_mtu"]} bytes, and only those of up to '
                      f'{echo["mtu"]} reach {host}.', f'ip link set {path["route"]["device"]} mtu {echo["mtu"]}')
    if facts['firewall']['nft'] is not None:
        verdict, chain = firewall.nft_verdict(facts['firewall']['nft'], 'output', path['port'],
                                              path['route'].get('device'), path['family'])
        if verdict == firewall.DROP:
            add(HINT, f'This host\'s firewall ({chain}) drops what is sent to UDP port {path["port"]}.',
                f'nft insert rule {chain} udp dport {path["port"]} accept')


def judge_exchange(path, name, exchange, add):
    host = path['host']
    if not exchange['is_proven']:
        text, command = mended(path, name, exchange['why'])
        add(STOP, text, command or exchange['command'])
        return
    if exchange['sessions_paired']:
        add(HINT, f'Answers from {host} arrive only at the port that the requests came from: a firewall or NAT is '
                  'on the path, and each packet costs one more look-up.',
            f'nft insert rule inet filter input {path["family"]} saddr {path["address"]} udp sport 1024-65535 accept')
    calls = exchange['rpcs_per_second'] * exchange['seconds']
    if calls and exchange['retransmissions'] > max(1, LOSS_SHARE_MAX * calls):
        add(HINT, f'{exchange["retransmissions"]} of {calls:.0f} requests to {host} were sent again.',
            f'ethtool -S {path["route"]["device"]} | grep -iE "drop|err|miss"')
