"""The doctor. It collects facts (look.py, machine.py, network.py, transports.py), judges them (rules.py and *_rules.py,
firewall.py), tries transports (proof.py, path.py) and prints the result (report.py). Python's standard library only.
"""
