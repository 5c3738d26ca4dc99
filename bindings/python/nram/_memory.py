"""Memory and Mapping: the public classes."""

from __future__ import annotations

import ctypes
import errno
import gc
import itertools
import json
import math
import operator
import threading

from . import _library
from ._arguments import _budget, _check, _choice, _error, _integer, _milliseconds, _size, _text
from ._lifetime import CALL, OWNER, VIEW, Error, Hold, Resource
from ._versions import _description, _publish

_c = _library.library
_ELEMENT_NAMES = {number: name for name, number in _library.ELEMENTS.items()}


class _Pool(Resource):
    """A nram_t."""

    def __init__(self, pool, options):
        super().__init__("nram.Memory", threading.RLock())
        self.regions = set()
        self.pointer = _c.nram_open(pool, options)
        if not self.pointer:
            raise _error()

    def free(self):
        _check(_c.nram_close(self.pointer))

    def close(self):
        self.check_process()
        with self.lock:
            if self.closed:
                return
            self.check_unused()
            for region in list(self.regions):
                region.check_unused()
            self.set_closed(True)
        try:
            for region in list(self.regions):
                region.free()
        except BaseException:
            with self.lock:
                self.set_closed(False)
            raise
        self.free()

    def set_closed(self, closed):
        self.closed = closed
        for region in list(self.regions):
            region.closed = closed


class _Region(Resource):
    """A mapping of a pool; holds the pool."""

    def __init__(self, pool, address, length, shared, name=None):
        super().__init__("nram.Mapping", pool.lock)
        self.pool, self.address, self.length = pool, address, length
        self.shared = shared  # other processes may read it
        self.name = name
        self.described = None  # the _description() of the first array that was made of it
        # Guards libnram's texts of the observed version against next(), which frees them. Mappings that go on together
        # share it.
        self.version_lock = threading.RLock()
        self.owner_key = None
        self.pool_hold = Hold(pool, OWNER)
        with self.lock:
            pool.regions.add(self)

    def check_unused(self):
        super().check_unused()
        if self.closed:
            raise Error(errno.EBUSY, "another thread is unmapping a mapping of this nram.Memory")

    def free(self):
        failed = False
        try:
            _check(_c.nram_munmap(self.pool.pointer, self.address))
        except Error:
            failed = True  # nothing was unmapped
            raise
        finally:
            with self.lock:
                if failed:
                    self.closed = False
                else:
                    self.pool.regions.discard(self)
            if not failed:
                self.pool_hold.release()

    def close(self):
        self.check_process()
        with self.lock:
            if self.closed:
                return
            self.check_unused()
            self.closed = True
        self.free()

    def leave(self):
        """Goes on without its owner. A mapping with views is flushed, so that its errors are raised here."""
        with self.lock:
            if self.closed:
                return
            viewed = VIEW in self.holds.values()
        if viewed and self.shared:
            with Hold(self, CALL):
                _check(_c.nram_flush(self.pool.pointer, self.address, self.length))
        self.let_go(self.owner_key)


def _close(resource):
    try:
        resource.close()
    except BufferError:
        gc.collect()  # the views may be garbage
        resource.close()


class Memory:
    """A pool, a budget of local memory, and the mappings made in it.

    pool         "host:port,host:port" or "@hostfile"; None: $NRAM_POOL, else the pool of `nram up`, else
                 /etc/nram/pool
    budget       local memory for pages: bytes, or text as "512M"; "auto" or "auto:256M-4G": it follows the machine,
                 between a floor and a ceiling; None: $NRAM_BUDGET, else 256 MiB
    page_bytes   unit of faults: a multiple of 4096 up to 1 MiB; 0: 4096
    handlers     threads that answer faults, 1 to 64; 0: 4
    policy       the order of eviction: "default", "second_chance", "fifo" or "random"
    timeout_ms   after which a server that does not answer counts as lost; 0: 10,000
    copies       copies of each page, on servers of different hosts, 1 to 4; 0: $NRAM_COPIES, else 1, and for mappings
                 that are kept 2 if servers of two hosts answer
    key_file     a file with a secret of 16 to 4096 bytes, which only this user may read: it seals mappings that have a
                 name, so that servers see only ciphertext; None: $NRAM_KEY_FILE, else none

    Raises Error, which is an OSError, if libnram refuses, and ValueError for arguments that libnram does not get.

    close() gives all of it back, and raises BufferError, with nothing done, while arrays or memoryviews of a mapping
    are alive. The end of a `with` closes too, but leaves a mapping with arrays or memoryviews, and the pool, until the
    last of them is deleted; so does the deletion of a Memory that was not closed.

    Any thread may call any method at any time, but see Mapping.next(). When a server does not answer, methods may block
    for three times the timeout for each mapping.
    """

    def __init__(
        self,
        pool=None,
        budget=None,
        *,
        page_bytes=0,
        handlers=0,
        policy="default",
        timeout_ms=0,
        copies=0,
        key_file=None,
    ):
        options = _library.Options(size=ctypes.sizeof(_library.Options))
        options.budget_bytes, options.budget_min_bytes, options.budget_max_bytes = _budget(budget)
        options.page_bytes = _size(page_bytes, "page_bytes")
        options.handlers = _integer(handlers, "handlers", 32)
        options.policy = _choice(policy, _library.POLICIES, "policy")
        options.timeout_ms = _integer(timeout_ms, "timeout_ms", 32)
        options.copies = _integer(copies, "copies", 32)
        options.key_file = _text(key_file, "key_file")
        self._pool = _Pool(_text(pool, "pool"), ctypes.byref(options))
        self._owner = Hold(self._pool, OWNER)
        self._left = False

    def map(self, length=0, name=None, *, read_only=False, attach=False, keep=False) -> Mapping:
        """Maps `length` bytes (or "64G") of zeros; ENOMEM if the pool has no room for all of them.

        name       lets others attach it; EEXIST: it is taken
        read_only  attach the region of that name for reading; length 0 is all of it. ENOENT: there is none
        attach     the same for reading and writing; EBUSY: another process has it so, or another mapping of this Memory
        keep       the region outlives the mapping and the process; otherwise it is freed with the mapping, an attached
                   one too. It remains this Memory's until that is closed: to others, attaching it is EBUSY until then
        """
        self._check_open()
        length = _size(length, "length")
        name = _text(name, "name")
        flags = (
            (_library.MAP_READ_ONLY if read_only else 0)
            | (_library.MAP_ATTACH if attach else 0)
            | (_library.MAP_KEEP if keep else 0)
        )
        with Hold(self._pool, CALL):
            address = _c.nram_mmap(self._pool.pointer, length, name, flags)
            if not address:
                raise _error()
            length = length or _c.nram_length(self._pool.pointer, address)
            shared = bool(name) and not read_only
            return Mapping(_Region(self._pool, address, length, shared, name), bool(read_only))

    def publish(
        self,
        mappings=(),
        *,
        arrays=None,
        keep="with_owner",
        history=2,
        step=0,
        header=None,
        most=0,
        when_full="drop_oldest",
        wait=0.0,
    ) -> int:
        """Makes one version of the present contents of these mappings, and returns its number. Observers find it by the
        first one's name. A NumPy array in the list means its mapping. Returns when the state is fixed: the program may
        write on. Only changes travel. Waits for an earlier version that is on its way. See Mapping.published().

        arrays     contiguous NumPy arrays of numbers or bool by the names that observers use (Mapping.arrays); their
                   mappings are published too. None: each array of the list, and for each mapping in it the first array
                   that Mapping.array() made, by the name of the mapping. {}: no arrays are described
        keep       "with_owner", "until_dropped", or seconds after this program's end: the version outlives it, as
                   its mappings must (keep=True)
        history    published versions to keep, this one included, besides observed ones
        step       the program's own count
        header     any value for json.dumps(), with other information for observers
        most       versions that servers may have at a time, observed ones and this one included; 0: 1,000
        when_full  if this is one too many: "drop_oldest", even observed ones; "wait" for `wait` seconds until observers
                   have let go of one; "fail". The last two raise ENOSPC
        """
        self._check_open()
        return _publish(self._pool, mappings, arrays, True, keep, history, step, header, most, when_full, wait)

    def observe(self, name, version=0) -> Mapping:
        """Maps a published version (0: the newest) of the mapping of that name, read-only and unchanging until
        Mapping.next(). ENOENT: there is none (yet). EIO: it was dropped, or servers do not answer."""
        self._check_open()
        with Hold(self._pool, CALL):
            address = _c.nram_observe(self._pool.pointer, _text(name, "name"), _integer(version, "version"), None)
            if not address:
                raise _error()
            return self._observed(address)

    def observe_all(self, name, version=0) -> list[Mapping]:
        """The same with all mappings of the version, in the order of publish(). They go on together."""
        self._check_open()
        addresses = (ctypes.c_void_p * _library.MAPPINGS_MAX)()
        count = ctypes.c_size_t(_library.MAPPINGS_MAX)
        with Hold(self._pool, CALL):
            _check(
                _c.nram_observe_all(
                    self._pool.pointer,
                    _text(name, "name"),
                    _integer(version, "version"),
                    addresses,
                    ctypes.byref(count),
                    None,
                )
            )
            lock = threading.RLock()
            return [self._observed(address, lock) for address in addresses[: count.value]]

    def _observed(self, address, version_lock=None):
        length = _c.nram_length(self._pool.pointer, address)
        region = _Region(self._pool, address, length, False)
        region.version_lock = version_lock or region.version_lock
        return Mapping(region, True)

    def set_budget(self, budget):
        """Changes the budget (bytes, or text as "512M"), or its ceiling if it follows the machine. Returns at once:
        pages beyond a smaller budget are evicted as fast as servers take them. EBUSY: more than half of it is
        pinned."""
        self._check_open()
        size = _size(budget, "budget")
        with Hold(self._pool, CALL):
            _check(_c.nram_set_budget(self._pool.pointer, size))

    def stats(self) -> dict[str, int]:
        """The figures of nram_stats in nram.h, by their names there. Never waits for servers."""
        self._check_open()
        stats = _library.Stats()
        stats.size = ctypes.sizeof(stats)
        with Hold(self._pool, CALL):
            _check(_c.nram_get_stats(self._pool.pointer, ctypes.byref(stats)))
        return {name: getattr(stats, name) for name, _ in stats._fields_ if name != "size"}

    def close(self):
        """Unmaps all mappings and closes the pool. See Memory for views that are alive. A second call does nothing."""
        _close(self._pool)

    @property
    def closed(self) -> bool:
        """True if the pool is closed and all memory given back."""
        return self._pool.closed

    def _check_open(self):
        self._pool.check_process()
        if self._left or self._pool.closed:
            raise ValueError("this nram.Memory is closed")

    def __enter__(self):
        self._check_open()
        return self

    def __exit__(self, *exception):
        if self._pool.is_inherited():
            return
        self._left = True
        for region in list(self._pool.regions):
            region.leave()
        self._owner.release()

    def __reduce__(self):
        raise TypeError("nram.Memory cannot be copied or pickled")


class Mapping:
    """Bytes of a Memory, made by Memory.map(). A Mapping that nothing refers to any more is unmapped.

    Memory is never unmapped under a view: each `buffer` and each `array` holds the mapping, and their slices, arrays
    and memoryviews hold them in turn, so the memory remains until the last of them is deleted, even after the Mapping
    and the Memory. Only a bare address (ndarray.ctypes.data) holds nothing.

    close() unmaps now, and raises BufferError while there are views. The end of a `with` unmaps, or leaves that to the
    last view.
    """

    def __init__(self, region, read_only):
        self._region = region
        self._owner = Hold(region, OWNER)
        region.owner_key = self._owner.key
        self._read_only = read_only
        self._type = ctypes.c_char * region.length

    @property
    def buffer(self) -> memoryview:
        """All bytes, as a memoryview of format "B"; read-only if the mapping is."""
        hold = Hold(self._region, VIEW)
        exporter = self._type.from_address(self._region.address)
        exporter.hold = hold
        view = memoryview(exporter).cast("B")
        return view.toreadonly() if self._read_only else view

    def __buffer__(self, flags):  # memoryview(mapping), numpy.frombuffer(mapping): from Python 3.12 on
        return self.buffer

    def array(self, dtype="uint8", shape=None, offset=0):
        """A NumPy array over the bytes from `offset` on, in C order; without a shape, of one dimension to the end.
        publish() describes the first array that was made of a mapping with a name."""
        array = self._array(dtype, shape, offset)
        region = self._region
        if region.name is not None and region.described is None and array.size > 0:
            try:
                region.described = _description(region.name, array)
            except ValueError:
                pass  # observers could not read it either
        return array

    def _array(self, dtype, shape, offset):
        try:
            import numpy
        except ImportError as error:
            raise ImportError(
                f"Mapping.array() needs NumPy ({error}): install python3-numpy or `pip install numpy`; "
                "Mapping.buffer does without"
            ) from None
        dtype = numpy.dtype(dtype)
        offset, room = self._range(offset, None)
        if dtype.itemsize == 0 or dtype.hasobject:
            raise ValueError(f"dtype: {dtype}: expected elements that are bytes, of a size above 0")
        if shape is None:
            shape = (room // dtype.itemsize,)
        elif not hasattr(shape, "__iter__"):
            shape = (shape,)
        shape = tuple(operator.index(extent) for extent in shape)
        count = math.prod(shape)
        if min(shape, default=0) < 0 or count * dtype.itemsize > room:
            raise ValueError(f"shape: {shape} of {dtype} from {offset} on does not fit into {len(self)} bytes")
        if count == 0:
            return numpy.empty(shape, dtype)
        # Its base is the memoryview, so it stays read-only if that is (with numpy.ndarray it could be made writeable).
        return numpy.frombuffer(self.buffer, dtype, count, offset).reshape(shape + dtype.shape)

    def advise(self, advice, offset=0, length=None):
        """Advice for a range in bytes (by default the whole mapping). Views may be alive.

        "normal"      recognise streams and read ahead; this and the next two hold for the whole mapping
        "sequential"  read ahead as far as possible
        "random"      never read ahead
        "will_need"   begin to fetch, as much as half of the budget; waits only while 16 windows are on their way
        "dont_need"   write back and drop the local copy; the contents remain
        "pin"         fetch, and never evict; whole pages. ENOSPC: more than half of the budget
        "unpin"       ends all pins of the pages: they are not counted
        "drop"        the contents of the pages that lie wholly in the range are not needed any more: zeros from now on
        """
        advice = _choice(advice, _library.ADVICE, "advice")
        self._call(_c.nram_advise, offset, length, advice)

    def prefetch(self, offset=0, length=None):
        """Begins to fetch a range, as much as half of the budget; waits only while 16 windows are on their way."""
        self._call(_c.nram_prefetch, offset, length)

    def flush(self, offset=0, length=None):
        """Writes the changed pages of a range back; when it returns, the servers have them, and readers see them."""
        self._call(_c.nram_flush, offset, length)

    def publish(
        self,
        *,
        arrays=None,
        keep="with_owner",
        history=2,
        step=0,
        header=None,
        most=0,
        when_full="drop_oldest",
        wait=0.0,
    ) -> int:
        """Memory.publish() for this mapping alone."""
        pool = self._region.pool
        return _publish(pool, [self], arrays, False, keep, history, step, header, most, when_full, wait)

    def published(self, version=0, timeout=None) -> bool:
        """Waits until the version (0: the last) can be observed; False: not within `timeout` seconds (None: no limit).
        EIO: it could not be published. EINPROGRESS: it may exist, and does if a later one does."""
        version = _integer(version, "version")
        while True:
            milliseconds = 1_000 if timeout is None else _milliseconds(timeout)
            with Hold(self._region, CALL):
                if _c.nram_published(self._region.pool.pointer, self.address, version, milliseconds) == 0:
                    return True
                if ctypes.get_errno() != errno.ETIMEDOUT:
                    raise _error()
            if timeout is not None:
                return False

    def drop_version(self, version):
        """Drops the published version; its observers keep it. ENOENT: there is none."""
        with Hold(self._region, CALL):
            _check(_c.nram_drop_version(self._region.pool.pointer, self.address, _integer(version, "version")))

    def next(self, timeout=0.0):
        """Goes on to the newest version of an observed mapping as soon as there is a newer one, and returns its number;
        None after `timeout` seconds. Arrays and memoryviews show it then. No other thread may read them meanwhile, or
        close this mapping or others of its observe_all(); `arrays` and `header` wait for it. Unchanged pages remain
        resident. EBUSY: the newer version has other mappings: observe it anew."""
        version = ctypes.c_uint64()
        with Hold(self._region, CALL), self._region.version_lock:
            if (
                _c.nram_next(
                    self._region.pool.pointer, self.address, _milliseconds(timeout), ctypes.byref(version)
                )
                == 0
            ):
                return version.value
            if ctypes.get_errno() != errno.ETIMEDOUT:
                raise _error()
            return None

    @property
    def version(self) -> int:
        """The number of the observed version. EINVAL: the mapping does not observe."""
        return self._version_info().version

    @property
    def step(self) -> int:
        """The producer's own count for the observed version."""
        return self._version_info().step

    @property
    def arrays(self) -> dict:
        """The arrays that the producer has described in an observed mapping, by their names, as read-only NumPy arrays.
        After next() take them anew: the next version may have others. EINVAL: the mapping does not observe."""
        with Hold(self._region, CALL), self._region.version_lock:
            return self._arrays()

    def _arrays(self):
        found = {}
        for index in itertools.count():
            array = _library.Array(size=ctypes.sizeof(_library.Array))
            if _c.nram_get_array(self._region.pool.pointer, self.address, index, ctypes.byref(array)) != 0:
                if ctypes.get_errno() != errno.ENOENT:
                    raise _error()
                return found
            # Other mappings show their own arrays.
            if array.data is None or not 0 <= array.data - self.address < len(self):
                continue
            name = array.name.decode("utf-8", "surrogateescape")
            extents = array.extents[: array.dimensions]
            if array.order == _library.ORDER_C:
                found[name] = self._array(_ELEMENT_NAMES[array.type], extents, array.data - self.address)
            else:
                found[name] = self._array(_ELEMENT_NAMES[array.type], extents[::-1], array.data - self.address).T

    @property
    def header(self):
        """The producer's header for the observed version, by json.loads(); None: there is none."""
        with Hold(self._region, CALL), self._region.version_lock:
            text = _c.nram_version_header(self._region.pool.pointer, self.address)
            if text is None:
                raise _error()
            return json.loads(text) if text else None

    def _version_info(self):
        info = _library.VersionInfo(size=ctypes.sizeof(_library.VersionInfo))
        with Hold(self._region, CALL):
            _check(_c.nram_get_version_info(self._region.pool.pointer, self.address, ctypes.byref(info)))
        return info

    def pin(self, offset=0, length=None):
        """advise("pin"): fetches a range and keeps it here. ENOSPC: more than half of the budget."""
        self.advise("pin", offset, length)

    def unpin(self, offset=0, length=None):
        self.advise("unpin", offset, length)

    def close(self):
        """Unmaps. See Mapping for views that are alive. A second call does nothing."""
        _close(self._region)

    @property
    def closed(self) -> bool:
        """True if it is unmapped."""
        return self._region.closed

    @property
    def address(self) -> int:
        return self._region.address

    @property
    def read_only(self) -> bool:
        return self._read_only

    def __len__(self):
        return self._region.length

    def _range(self, offset, length):
        offset = _size(offset, "offset")
        if offset > len(self):
            raise ValueError(f"offset: {offset} is behind the end, {len(self)}")
        length = len(self) - offset if length is None else _size(length, "length")
        if length > len(self) - offset:
            raise ValueError(f"length: {length} bytes from {offset} on reach behind the end, {len(self)}")
        return offset, length

    def _call(self, function, offset, length, *arguments):
        offset, length = self._range(offset, length)
        with Hold(self._region, CALL):
            if length > 0:
                _check(function(self._region.pool.pointer, self._region.address + offset, length, *arguments))

    def __enter__(self):
        self._region.check_process()
        return self

    def __exit__(self, *exception):
        if not self._region.is_inherited():
            self._region.leave()

    def __reduce__(self):
        raise TypeError("nram.Mapping cannot be copied or pickled; name the region and attach it")
