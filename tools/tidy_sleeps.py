"""Sleeps in C++: calls that wait for time to pass, and condition variables that no thread signals."""

import re

SLEEPS_IN = "base/poll_until.h"  # their definitions
SLEEP = re.compile(
    r"\b(?:sleep_for|sleep_until|sleep|usleep|nanosleep|clock_nanosleep|SleepFor|SleepMs|PollUntil)\s*\("
    r"|\bp?poll\s*\(\s*nullptr\s*,\s*0\s*,"
)
CONDITION = re.compile(r"\b(?:CondVar|condition_variable(?:_any)?)\s+(\w+)\s*(?:;|\{|ABSL_|=)")
WAIT = r"\s*(?:\.|->)\s*(?:[Ww]ait\w*)\s*\("
SIGNAL = r"\s*(?:\.|->)\s*(?:Signal\w*|Notify\w*|notify_\w+)\s*\("


def count_sleeps(source):
    return 0 if source.path == SLEEPS_IN else len(SLEEP.findall(source.code))


def find_unsignalled(sources):
    """(path, line, name) of each condition variable that threads wait for, and that no source signals.

    The sources that can are the one that declares it, and those that include that one. Where its address is taken
    anything may signal it.
    """
    found = []
    for source in sources:
        for match in CONDITION.finditer(source.code):
            name = match.group(1)
            users = [user for user in sources if user is source or source.path in user.includes]
            if not any(re.search(rf"\b{name}{WAIT}", user.code) for user in users):
                continue
            if not any(re.search(rf"\b{name}{SIGNAL}|&\s*(?:\w+(?:\.|->))*{name}\b", user.code) for user in users):
                found.append((source.path, source.code.count("\n", 0, match.start()) + 1, name))
    return found
