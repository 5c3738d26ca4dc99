#!/usr/bin/env python3
"""Tests of published versions; as test_nram.py.

PYTHONPATH=bindings/python bindings/python/test_versions.py
"""

import errno
import gc
import threading
import time
import unittest

import nram
from test_case import BUDGET, MIB, NramTest, block, needs_numpy, numpy, setUpModule, unique_name

assert setUpModule  # unittest calls it


class Versions(NramTest):
    def test_publish_and_observe(self):
        name = unique_name()
        with nram.Memory(budget=BUDGET) as memory, nram.Memory(budget=BUDGET) as other:
            self.assert_errno(errno.ENOENT, other.observe, name)
            written = memory.map(2 * BUDGET, name)
            view = written.buffer
            for i in range(2 * BUDGET // MIB):
                view[i * MIB : (i + 1) * MIB] = block(i)
            version = written.publish(step=7, header={"shape": [1, 2]})
            view[:MIB] = block(100)
            self.assertTrue(written.published(version))
            seen = other.observe(name)
            self.assertTrue(seen.read_only)
            self.assertEqual((seen.version, seen.step, seen.header), (version, 7, {"shape": [1, 2]}))
            bytes_seen = seen.buffer
            for i in range(2 * BUDGET // MIB):
                self.assertEqual(bytes_seen[i * MIB : (i + 1) * MIB], block(i))
            self.assertIsNone(seen.next())
            later = written.publish()
            self.assertEqual(seen.next(timeout=60), later)
            self.assertEqual(bytes_seen[:MIB], block(100))
            self.assertIsNone(seen.header)
            written.drop_version(later)
            self.assert_errno(errno.ENOENT, written.drop_version, later)
            self.assertEqual(bytes_seen[:MIB], block(100))
            del view, bytes_seen

    def test_several_at_once(self):
        names = [unique_name(), unique_name()]
        with nram.Memory(budget=BUDGET) as memory, nram.Memory(budget=BUDGET) as other:
            mappings = [memory.map(MIB, name) for name in names]
            for i, mapping in enumerate(mappings):
                mapping.buffer[:5] = b"hello" if i == 0 else b"world"
            memory.publish(mappings)
            self.assertTrue(mappings[0].published())
            seen = other.observe_all(names[0])
            self.assertEqual([bytes(mapping.buffer[:5]) for mapping in seen], [b"hello", b"world"])

    @needs_numpy
    def test_arrays_by_themselves(self):
        name = unique_name()
        with nram.Memory(budget=BUDGET) as memory, nram.Memory(budget=BUDGET) as other:
            written = memory.map(MIB, name)
            self.assertEqual(written.publish(), 1)
            self.assertTrue(written.published())
            seen = other.observe(name)
            self.assertEqual(seen.arrays, {})
            u = written.array("f8", (4, 5), offset=64)
            written.array("u1")  # it is not the first
            u[:] = numpy.arange(20).reshape(4, 5)
            written.publish()
            self.assertEqual(seen.next(timeout=60), 2)
            self.assertEqual(list(seen.arrays), [name])
            found = seen.arrays[name]
            self.assertEqual((found.shape, found.dtype, found.flags.writeable), ((4, 5), u.dtype, False))
            self.assertTrue((found == numpy.arange(20).reshape(4, 5)).all())
            # The mapping and its pool live as long as the array.
            with nram.Memory(budget=BUDGET) as third:
                kept = third.observe(name).arrays[name]
            gc.collect()
            self.assertEqual((kept[3, 4], third.closed), (19, False))
            del kept
            self.assertTrue(third.closed)
            # An array stands for its mapping, and need not be the first one.
            memory.publish([written.array("i4", 7)])
            self.assertEqual(seen.next(timeout=60), 3)
            self.assertEqual((seen.arrays[name].shape, seen.arrays[name].dtype), ((7,), numpy.dtype("i4")))
            written.publish(arrays={})
            self.assertEqual(seen.next(timeout=60), 4)
            self.assertEqual(seen.arrays, {})
            del u, found

    @needs_numpy
    def test_arrays_by_name(self):
        names = [unique_name(), unique_name()]
        with nram.Memory(budget=BUDGET) as memory, nram.Memory(budget=BUDGET) as other:
            first, second = (memory.map(MIB, name) for name in names)
            arrays = {
                "u \u00fc": first.array("c16", (3, 4)),
                "transposed": first.array("f4", (3, 4), offset=4096).T,
                "flags": second.array("?", 5),
                "count": second.array("u2", (), offset=64),
                "cube": first.array("i1", (2, 3, 4), offset=8192)[1],
                "empty": second.array("u8", (0, 3)),  # it has no place: the first mapping shows it
            }
            for i, array in enumerate(arrays.values()):
                array[...] = numpy.arange(array.size).reshape(array.shape) + i
            memory.publish(arrays=arrays)
            self.assertTrue(first.published())
            seen = other.observe_all(names[0])
            shown = [{"u \u00fc", "transposed", "cube", "empty"}, {"flags", "count"}]
            self.assertEqual([set(mapping.arrays) for mapping in seen], shown)
            for mapping in seen:
                for name, found in mapping.arrays.items():
                    self.assertEqual((found.shape, found.dtype), (arrays[name].shape, arrays[name].dtype), name)
                    self.assertTrue((found == arrays[name]).all(), name)
            self.assertTrue(seen[0].arrays["transposed"].flags.f_contiguous)
            alone = other.observe(names[0])
            self.assertEqual(set(alone.arrays), shown[0])
            with self.assertRaisesRegex(ValueError, "not contiguous"):
                memory.publish(arrays={"a": first.array("i1", (4, 4))[:, 1]})
            with self.assertRaisesRegex(ValueError, "in no mapping"):
                memory.publish(arrays={"a": numpy.zeros(3)})
            with self.assertRaisesRegex(TypeError, "list: expected a NumPy array"):
                memory.publish(arrays={"a": [1, 2]})
            with self.assertRaisesRegex(ValueError, "expected elements of int8, "):
                memory.publish(arrays={"a": first.array(">f8", 3)})
            self.assert_errno(errno.EINVAL, second.publish, arrays={"u": arrays["u \u00fc"]})
            self.assert_errno(errno.EINVAL, memory.publish, [first.array("f4", 3, 0), first.array("f8", 3, 0)])
            del arrays, array, found, mapping

    @needs_numpy
    def test_arrays_are_of_one_version_whoever_goes_on(self):
        name, versions = unique_name(), 30
        with nram.Memory(budget=BUDGET) as memory, nram.Memory(budget=BUDGET) as other:
            written = memory.map(MIB, name)
            array = written.array("f8")

            def publish(step):
                arrays = {f"{step} {'x' * 60} {i}": array[i : i + 1] for i in range(50)}
                written.publish(arrays=arrays, step=step, header={"step": step})
                self.assertTrue(written.published())

            publish(0)
            seen = other.observe(name)
            wrong = []

            def look():
                while True:
                    names = list(seen.arrays)
                    steps = {int(text.split()[0]) for text in names}
                    if len(names) != 50 or len(steps) != 1 or not steps <= set(range(versions)):
                        wrong.append(names)
                    if wrong or seen.header["step"] == versions - 1:
                        return
                    time.sleep(0.0005)  # next() is to have its turn

            looking = threading.Thread(target=look, daemon=True)
            looking.start()
            for step in range(1, versions):
                publish(step)
                self.assertIsNotNone(seen.next(timeout=60))
            looking.join()
            self.assertEqual(wrong, [])
            del array

    def test_refused(self):
        with nram.Memory(budget=BUDGET) as memory:
            mapping = memory.map(MIB)
            self.assert_errno(errno.EINVAL, mapping.publish)
            self.assert_errno(errno.EINVAL, lambda: mapping.arrays)
            self.assert_errno(errno.EINVAL, mapping.next)
            self.assert_errno(errno.EINVAL, lambda: mapping.header)
            self.assert_errno(errno.EINVAL, memory.publish, [])
            self.assertRaises(ValueError, mapping.publish, keep="always")


if __name__ == "__main__":
    unittest.main(verbosity=2)
