#!/usr/bin/env python3
"""Tests of the package on a real pool: $NRAM_POOL, else the pool of `nram up`; $NRAM_LIBRARY is the library.

PYTHONPATH=bindings/python bindings/python/test_nram.py
"""

import copy
import errno
import gc
import os
import random
import re
import signal
import subprocess
import sys
import threading
import unittest

import nram
from nram import _library
from test_case import BEYOND, BUDGET, MIB, NramTest, block, needs_numpy, numpy, setUpModule, unique_name

assert setUpModule  # unittest calls it


class Contents(NramTest):
    def test_more_than_the_budget(self):
        with nram.Memory(budget=BUDGET) as memory, memory.map(BEYOND) as mapping:
            view = mapping.buffer
            self.assertEqual(len(view), BEYOND)
            self.assertEqual(bytes(view[:8192]), bytes(8192))
            order = list(range(BEYOND // MIB))
            for number in order:
                view[number * MIB : (number + 1) * MIB] = block(number)
            random.Random(1).shuffle(order)
            for number in order:
                self.assertEqual(bytes(view[number * MIB : (number + 1) * MIB]), block(number), number)
            stats = memory.stats()
            self.assertEqual(stats["budget_bytes"], BUDGET)
            self.assertGreaterEqual(stats["mapped_bytes"], BEYOND)
            self.assertLessEqual(stats["resident_bytes"], BUDGET)
            self.assertGreater(stats["evicted_pages"], 0)
            self.assertGreater(stats["written_bytes"], 0)
            self.assertGreater(stats["fetched_bytes"], 0)
            self.assertEqual(stats["lost_pages"], 0)

    def test_a_budget_that_changes(self):
        with nram.Memory(budget="16M") as memory, memory.map(BEYOND) as mapping:
            view = mapping.buffer
            for number in range(BEYOND // MIB):
                view[number * MIB : (number + 1) * MIB] = block(number)
            for budget in ("4M", 8 * MIB):
                memory.set_budget(budget)
                for number in range(BEYOND // MIB):
                    self.assertEqual(bytes(view[number * MIB : (number + 1) * MIB]), block(number), number)
            stats = memory.stats()
            self.assertEqual(stats["budget_bytes"], 8 * MIB)
            self.assertEqual((stats["budget_shrank"], stats["budget_grew"]), (1, 1))
            self.assertLessEqual(stats["resident_bytes"], 8 * MIB)
            self.assert_errno(errno.EINVAL, memory.set_budget, MIB)
            view.release()

    def test_a_budget_that_follows_the_machine(self):
        with nram.Memory(budget="auto:4M-8M") as memory, memory.map(BEYOND) as mapping:
            view = mapping.buffer
            view[:MIB] = block(1)
            self.assertIn(memory.stats()["budget_bytes"], range(4 * MIB, 8 * MIB + 1))
            memory.set_budget("4M")
            self.assertEqual(memory.stats()["budget_bytes"], 4 * MIB)
            self.assertEqual(bytes(view[:MIB]), block(1))
            view.release()

    def test_threads(self):
        wrong = []

        def work(view, seed):
            view[:] = block(seed, len(view))
            if bytes(view) != block(seed, len(view)):
                wrong.append(seed)

        with nram.Memory(budget=BUDGET) as memory:
            view = memory.map(BEYOND).buffer
            part = BEYOND // 4
            threads = [threading.Thread(target=work, args=(view[i * part : (i + 1) * part], i)) for i in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.assertEqual(wrong, [])

    @needs_numpy
    def test_array(self):
        with nram.Memory(budget="8M") as memory:
            a = memory.map("32M").array("int64", (4, -(-BEYOND // 32)))
            for row in range(4):
                a[row] = numpy.arange(row, row + a.shape[1])
            count = a.shape[1]
            self.assertEqual(int(a.sum()), sum(count * (count - 1) // 2 + row * count for row in range(4)))
            self.assertGreater(memory.stats()["evicted_pages"], 0)

    @needs_numpy
    def test_shapes_of_arrays(self):
        with nram.Memory(budget=BUDGET) as memory, memory.map(10000) as mapping:
            self.assertEqual(len(mapping), 10000)
            self.assertEqual(mapping.array().shape, (10000,))
            self.assertEqual(mapping.array("f8").shape, (1250,))
            self.assertEqual(mapping.array("f8", 3, offset=9976).shape, (3,))
            self.assertEqual(mapping.array("f8", (0, 5)).shape, (0, 5))
            self.assertEqual(mapping.array("f8", ()).shape, ())
            self.assertEqual(mapping.array(("f8", (2,)), 3).shape, (3, 2))
            mapping.array("u1", (10, 10), offset=100)[1, 2] = 7
            self.assertEqual(mapping.buffer[112], 7)
            for wrong in (("f8", 1251), ("u1", (101, 100)), ("f8", 1, 9993), ("V0",), (object,), ("u1", (-1, -1))):
                with self.assertRaises(ValueError, msg=wrong):
                    mapping.array(*wrong)

    def test_advice(self):
        with nram.Memory(budget=BUDGET) as memory, memory.map(BEYOND) as mapping:
            view = mapping.buffer
            view[:MIB] = block(1)
            view[MIB : 2 * MIB] = block(2)
            mapping.flush()
            mapping.advise("dont_need")
            mapping.prefetch(0, MIB)
            mapping.pin(0, "1M")
            mapping.advise("sequential")
            self.assertEqual(bytes(view[: 2 * MIB]), block(1) + block(2))
            mapping.unpin(0, MIB)
            mapping.advise("drop", 0, MIB)
            self.assertEqual(bytes(view[: 2 * MIB]), bytes(MIB) + block(2))
            mapping.flush(5, 0)
            self.assert_errno(errno.ENOSPC, mapping.pin)
            with self.assertRaisesRegex(ValueError, "dont_need"):
                mapping.advise("dontneed")
            for wrong in ((BEYOND + 1,), (0, BEYOND + 1), (-1,)):
                self.assertRaises(ValueError, mapping.flush, *wrong)


class Names(NramTest):
    def test_read_only_from_another_memory(self):
        name = unique_name()
        with nram.Memory(budget=BUDGET) as writer, nram.Memory(budget=BUDGET) as reader:
            mapping = writer.map(2 * MIB, name)
            mapping.buffer[MIB : 2 * MIB] = block(7)
            mapping.flush()
            self.assert_errno(errno.EEXIST, writer.map, MIB, name)
            with reader.map(0, name, read_only=True) as seen:
                self.assertTrue(seen.read_only)
                self.assertEqual(len(seen), 2 * MIB)
                self.assertEqual(bytes(seen.buffer), bytes(MIB) + block(7))
                with self.assertRaises(TypeError):
                    seen.buffer[0] = 1
                if numpy is not None:
                    self.assertFalse(seen.array().flags.writeable)
                    with self.assertRaises(ValueError):
                        seen.array().flags.writeable = True

    def test_kept(self):
        name = unique_name()
        with nram.Memory(budget=BUDGET) as memory:
            memory.map(MIB, name, keep=True).buffer[:] = block(3)
        with nram.Memory(budget=BUDGET) as memory:
            self.assertEqual(bytes(memory.map(0, name, attach=True, keep=True).buffer), block(3))
            self.assertEqual(bytes(memory.map(0, name, attach=True).buffer), block(3))
            self.assert_errno(errno.ENOENT, memory.map, 0, name, attach=True)

    def test_view_at_the_end_of_with_is_flushed(self):
        name = unique_name()
        with nram.Memory(budget=BUDGET) as memory:
            view = memory.map(MIB, name).buffer
            view[:] = block(4)
        with nram.Memory(budget=BUDGET) as reader:
            self.assertEqual(bytes(reader.map(0, name, read_only=True).buffer), block(4))
        del view

    def test_unknown(self):
        with nram.Memory(budget=BUDGET) as memory:
            self.assert_errno(errno.ENOENT, memory.map, 0, unique_name(), read_only=True)
            self.assert_errno(errno.ENOENT, memory.map, 0, unique_name(), attach=True)


class Errors(NramTest):
    def test_options(self):
        self.assert_errno(errno.EINVAL, nram.Memory, budget="1M")
        self.assert_errno(errno.EINVAL, nram.Memory, budget=BUDGET, page_bytes=5000)
        self.assert_errno(errno.EINVAL, nram.Memory, budget=BUDGET, handlers=65)
        self.assert_errno(errno.EINVAL, nram.Memory, budget=BUDGET, copies=5)
        self.assert_errno(errno.EINVAL, nram.Memory, budget="auto:8M-4M")
        wrong_autos = ("auto:", "auto:4M", "auto:0-4M", "automatic")
        for wrong in ("12MB", "", "M", "-1M", -1, 1 << 64, 0, (1 << 64) - 1, *wrong_autos):
            with self.assertRaisesRegex(ValueError, "budget", msg=wrong):
                nram.Memory(budget=wrong)
        with self.assertRaises(TypeError):
            nram.Memory(budget=1.5)
        with self.assertRaisesRegex(ValueError, "second_chance"):
            nram.Memory(policy="lru")
        with self.assertRaisesRegex(ValueError, "null"):
            nram.Memory("host\0")
        for policy in ("default", "second_chance", "fifo", "random"):
            nram.Memory(budget="8MiB", page_bytes="64K", handlers=1, policy=policy, timeout_ms=5000, copies=1).close()

    def test_sizes(self):
        for text, size in (
            ("4096", 4096),
            ("1.5G", 3 << 29),
            ("2k", 2048),
            ("64KiB", 65536),
            ("7B", 7),
            ("1T", 1 << 40),
        ):
            self.assertEqual(nram._memory._size(text, "size"), size)

    def test_length(self):
        with nram.Memory(budget=BUDGET) as memory:
            self.assert_errno(errno.EINVAL, memory.map, 0)
            self.assert_errno(errno.ENOMEM, memory.map, "1P")
            self.assertRaises(ValueError, memory.map, 1 << 64)

    def test_closed(self):
        memory = nram.Memory(budget=BUDGET)
        mapping = memory.map(MIB)
        self.assertFalse(mapping.closed or memory.closed)
        memory.close()
        memory.close()
        mapping.close()
        self.assertTrue(mapping.closed and memory.closed)
        self.assertRaises(ValueError, memory.map, MIB)
        self.assertRaises(ValueError, memory.stats)
        self.assertRaises(ValueError, memory.__enter__)
        self.assertRaises(ValueError, lambda: mapping.buffer)
        self.assertRaises(ValueError, mapping.flush)
        self.assertRaises(TypeError, copy.copy, mapping)

    def test_no_library(self):
        environment = dict(os.environ, NRAM_LIBRARY="/nowhere/libnram-core.so.0")
        words = [sys.executable, "-c", "import nram"]
        done = subprocess.run(words, env=environment, capture_output=True, text=True)
        self.assertRegex(done.stderr, "ImportError: .*/nowhere/libnram-core.so.0.*NRAM_LIBRARY")

    def test_header(self):
        """Python declares the same as the header."""
        path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "client", "memory", "nram.h")
        if not os.path.exists(path):
            self.skipTest(f"NOT TESTED: there is no {path}")
        with open(path) as file:
            header = re.sub(r"/\*.*?\*/", "", file.read(), flags=re.DOTALL)
        for struct, mirror in (
            ("nram_options", _library.Options),
            ("nram_stats", _library.Stats),
            ("nram_publish_options", _library.PublishOptions),
            ("nram_array", _library.Array),
            ("nram_version_info", _library.VersionInfo),
        ):
            body = re.search(rf"struct {struct} {{(.*?)}};", header, re.DOTALL).group(1)
            names = re.findall(r"(\w+)(?:\)\([^)]*\)|\[\w+\])?;", body)
            self.assertEqual(names, [name for name, _ in mirror._fields_])
        for enum, prefix, mirror in (
            ("nram_policy ", "NRAM_POLICY_", _library.POLICIES),
            ("nram_advice ", "NRAM_", _library.ADVICE),
            ("nram_element ", "NRAM_", _library.ELEMENTS),
            ("nram_version_keep ", "NRAM_KEEP_", _library.VERSION_KEEP),
            ("nram_version_full ", "NRAM_FULL_", _library.VERSION_FULL),
        ):
            body = re.search(rf"enum {enum}{{(.*?)}};", header, re.DOTALL).group(1)
            declared = {name.lower(): int(value) for name, value in re.findall(rf"{prefix}(\w+) = (-?\d+)", body)}
            self.assertEqual(declared, mirror)


class Views(NramTest):
    """Nothing is unmapped under a view. A fault here ends the program with SIGSEGV."""

    def check_guarded(self, take):
        memory = nram.Memory(budget=BUDGET)
        mapping = memory.map(MIB)
        mapping.buffer[:] = block(5)
        view = take(mapping)
        self.assertRaises(BufferError, mapping.close)
        self.assertRaises(BufferError, memory.close)
        mapping.flush()
        self.assertEqual(bytes(view), block(5)[: len(bytes(view))])
        del view
        mapping.close()
        memory.close()
        self.assertTrue(memory.closed)

    def test_memoryview(self):
        self.check_guarded(lambda mapping: mapping.buffer)
        self.check_guarded(lambda mapping: memoryview(mapping.buffer)[:100][:50])

    @needs_numpy
    def test_array(self):
        self.check_guarded(lambda mapping: mapping.array())
        self.check_guarded(lambda mapping: mapping.array("u2")[:100].reshape(10, 10)[:2].view("u1"))
        self.check_guarded(lambda mapping: numpy.frombuffer(mapping.buffer, "u1", 100))

    @unittest.skipIf(sys.version_info < (3, 12), "memoryview(mapping) is for Python 3.12 and later")
    def test_buffer_protocol(self):
        self.check_guarded(memoryview)

    def test_released(self):
        with nram.Memory(budget=BUDGET) as memory:
            mapping = memory.map(MIB)
            with mapping.buffer as view:
                view[0] = 1
            mapping.close()

    def test_with_leaves_it_to_the_last_view(self):
        with nram.Memory(budget=BUDGET) as memory:
            kept, gone = memory.map(MIB), memory.map(MIB)
            view = kept.buffer
            view[:] = block(6)
        self.assertTrue(gone.closed)
        self.assertFalse(kept.closed or memory.closed)
        self.assertRaises(ValueError, memory.map, MIB)
        self.assertEqual(bytes(view), block(6))
        self.assertRaises(BufferError, memory.close)
        del view
        self.assertTrue(kept.closed and memory.closed)

    def test_an_error_is_not_hidden_by_views(self):
        with self.assertRaises(ZeroDivisionError):
            with nram.Memory(budget=BUDGET) as memory:
                with memory.map(MIB) as mapping:
                    view = mapping.buffer
                    view[0] = 1 // 0

    def test_only_the_view_is_left(self):
        memory = nram.Memory(budget=BUDGET)
        pool = memory._pool
        view = memory.map(MIB).buffer[MIB // 2 :]
        del memory
        gc.collect()
        view[:] = block(8)[: len(view)]
        self.assertEqual(bytes(view), block(8)[: len(view)])
        self.assertFalse(pool.closed)
        del view
        self.assertTrue(pool.closed)

    def test_dropped_mapping_is_unmapped(self):
        with nram.Memory(budget=BUDGET) as memory:
            memory.map(MIB).buffer[0] = 1
            self.assertEqual(memory.stats()["mapped_bytes"], 0)

    def test_garbage_that_looks_at_itself(self):
        """The collector calls the destructors of a cycle in any order."""
        seen = []

        class Cycle:
            def __init__(self, *things):
                self.me, self.things = self, things

            def __del__(self):
                for thing in self.things:
                    if isinstance(thing, memoryview):
                        seen.append(bytes(thing) == block(9))
                        thing[0] = 1

        pools = []
        for order in range(4):
            memory = nram.Memory(budget=BUDGET)
            pools.append(memory._pool)
            mapping = memory.map(MIB)
            view = mapping.buffer
            view[:] = block(9)
            things = (view, mapping, memory)
            mapping.circle = memory.circle = things
            Cycle(*(things if order % 2 else reversed(things[: 1 + order])))
            del memory, mapping, view, things
        gc.collect()
        self.assertEqual(seen, [True] * 4)
        self.assertTrue(all(pool.closed for pool in pools))

    def test_close_looks_for_garbage(self):
        with nram.Memory(budget=BUDGET) as memory:
            mapping = memory.map(MIB)
            circle = [mapping.buffer]
            circle.append(circle)
            del circle
            mapping.close()

    def test_end_of_the_program(self):
        words = [sys.executable, "-c", "import nram; m = nram.Memory(budget='8M'); b = m.map('16M').buffer; b[0] = 1"]
        done = subprocess.run(words, capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))


class Fork(NramTest):
    def test_child(self):
        memory = nram.Memory(budget=BUDGET)
        mapping = memory.map(MIB)
        view = mapping.buffer
        view[:] = block(10)

        def methods():
            self.assert_errno(errno.ENOTSUP, memory.stats)
            self.assert_errno(errno.ENOTSUP, memory.map, MIB)
            self.assert_errno(errno.ENOTSUP, memory.close)
            self.assert_errno(errno.ENOTSUP, mapping.flush)
            self.assert_errno(errno.ENOTSUP, mapping.close)
            self.assert_errno(errno.ENOTSUP, lambda: mapping.buffer)
            self.assert_errno(errno.ENOTSUP, nram.Memory, budget=BUDGET)

        def destructors():
            nonlocal memory, mapping, view
            memory.__exit__(None, None, None)
            mapping.__exit__(None, None, None)
            del view, mapping, memory
            gc.collect()

        self.assert_child(0, methods)
        self.assert_child(0, destructors)
        self.assert_child(signal.SIGSEGV, lambda: view[0])
        self.assertEqual(bytes(view), block(10))
        mapping.flush()
        del view
        memory.close()


if __name__ == "__main__":
    unittest.main(verbosity=2)
