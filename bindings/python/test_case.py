"""Common parts of the tests, which run on a real pool: $NRAM_POOL, else the pool of `nram up`."""

import faulthandler
import os
import random
import resource
import signal
import sys
import unittest
import warnings

import nram

try:
    import numpy
except ImportError:
    numpy = None

MIB = 1 << 20
BUDGET = 8 * MIB
BEYOND = 4 * BUDGET
needs_numpy = unittest.skipIf(numpy is None, "NumPy is not installed: NOT TESTED")


def setUpModule():
    try:
        nram.Memory(budget=BUDGET).close()
    except nram.Error as error:
        if error.errno != errno.EPERM:
            raise
        raise unittest.SkipTest(f"NOT TESTED: {error}") from None


def unique_name():
    return f"test-{os.getpid()}-{random.randrange(1 << 40):x}"


def block(number, length=MIB):
    return random.Random(number).randbytes(length)


class NramTest(unittest.TestCase):
    def assert_errno(self, code, function, *arguments, **named):
        with self.assertRaises(nram.Error) as caught:
            function(*arguments, **named)
        self.assertEqual(caught.exception.errno, code, caught.exception)
        self.assertTrue(caught.exception.strerror)

    def assert_child(self, status, function):
        """Runs function in a child after fork(); `status` is os.waitpid's."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # "multi-threaded, fork() may deadlock"
            child = os.fork()
        if child == 0:
            code = 1
            try:
                signal.alarm(30)
                faulthandler.disable()
                resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
                function()
                code = 0
            except BaseException as error:
                print(f"in the child: {error!r}", file=sys.stderr, flush=True)
            finally:
                os._exit(code)
        self.assertEqual(os.waitpid(child, 0)[1], status)
