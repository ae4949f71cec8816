"""Prints the result: for people, or as one JSON object."""
import json
import sys
import textwrap

WIDTH = 110
MARKS = {'stop': 'x', 'hint': '-'}


def show_progress(text):
    if sys.stderr.isatty():
        print(f'\r\033[K{text}', end='', file=sys.stderr, flush=True)


def show(found, as_json):
    if as_json:
        print(json.dumps(found))
        return
    for result in found['transports']:
        print(f'{result["name"]:8}{result["verdict"]}{reached(result["trial"])}')
        if result['devices']:
            say('on: ' + ', '.join(result['devices']), '  ')
        if result['trial'] and result['trial']['is_proven'] and result['trial']['over'] != 'this host':
            say('tried over ' + result['trial']['over'], '  ')
        elif result['trial'] and result['trial'].get('is_untried'):
            say('not tried: ' + result['trial']['why'], '  ')
        show_findings(result['findings'])
    print('\nthe machine')
    say(found['machine_in_words'], '  ')
    show_findings(found['machine'])
    if found['path']:
        show_path(found['path'])
    if found['unseen']:
        print('\nnot seen')
        for what in found['unseen']:
            say(what, '  - ')
    print()
    if not found['path']:
        print('At least one transport runs.' if found['runs'] else 'No transport runs.')
    elif not found['runs']:
        print('The path is blocked.')
    else:
        print('The path is clear.' if found['path']['exchanges'] else 'No obstacle was found.')


def say(text, indent, **more):
    print(textwrap.fill(text, WIDTH, initial_indent=' ' * 8 + indent, subsequent_indent=' ' * (8 + len(indent)),
                        break_long_words=False, break_on_hyphens=False, **more))


def show_findings(findings):
    for finding in sorted(findings, key=lambda one: one['level'] != 'stop'):
        say(finding['text'], f'  {MARKS[finding["level"]]} ')
        print(' ' * 14 + finding['command'])  # on one line, so that it can be copied


def figure(value):
    return f'{value:.0f}' if value >= 100 else f'{value:.3g}'


def reached(trial):
    """'  0.65 us there and back (p99 1.1), 237000 RPCs/s one at a time'"""
    if not trial or not trial['is_proven']:
        return ''
    again = f', {trial["retransmissions"]} sent again' if trial['retransmissions'] else ''
    return (f': {figure(trial["p50_us"])} us there and back (p99 {figure(trial["p99_us"])}), '
            f'{trial["rpcs_per_second"]:.0f} RPCs/s one at a time{again}')


def show_path(path):
    print(f'\nthe path to {path["host"]}, UDP port {path["port"]}')
    route, echo = path['route'], path['echo']
    if path['address'] and 'error' not in route:
        words = [path['address'], f'from {route["source"]}']
        words += [f'by {route["device"]} (MTU {path["device_mtu"]})'] if route.get('device') else []
        words += [f'over {route["gateway"]}'] if 'gateway' in route else []
        say(' '.join(words), '  ')
    if echo:
        text = f'ICMP echo: {echo["lost"]} of {echo["sent"]} lost'
        if echo['p50_us'] is not None:
            text += f', {figure(echo["p50_us"])} us there and back'
        if echo['mtu']:
            text += f', packets of up to {echo["mtu"]} bytes pass'
        say(text, '  ')
    for name, exchange in path['exchanges'].items():
        say(f'{name}{reached(exchange)}' if exchange['is_proven'] else f'{name}: no RPC passed', '  ')
    if not path['exchanges'] and path['knock'] == 'silent':
        say('UDP: the port is not refused; whether a tern server is behind it is not known', '  ')
    show_findings(path['findings'])
