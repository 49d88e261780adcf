"""Reads and writes GGUF files. Matrices are numpy arrays of shape (outputs, inputs): the file's shape, reversed."""
import os
import struct
from math import prod

import numpy as np

from . import Refused

MAGIC, ALIGN, DEEPEST = b"GGUF", 32, 4
F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K, BF16 = 0, 1, 2, 3, 6, 7, 8, 12, 13, 14, 30
BLOCKS = {F32: (1, 4), F16: (1, 2), Q4_0: (32, 18), Q4_1: (32, 20), Q5_0: (32, 22), Q5_1: (32, 24), Q8_0: (32, 34), Q4_K: (256, 144),
          Q5_K: (256, 176), Q6_K: (256, 210), BF16: (1, 2)}
TYPE_NAMES = {"f32": F32, "f16": F16}
SCALARS = "BbHhIifB"  # of value types 0 to 7; 8 is a string, 9 an array
WIDE = {10: "Q", 11: "q", 12: "d"}


class File:
    """A GGUF file: keys is a dict, tensors maps names to (type, shape as in the file, offset). Weights are read when asked for."""

    def __init__(self, path):
        self.path = path
        if not os.path.isfile(path):
            raise Refused(f"{path}: no such file: want a GGUF file")
        if os.path.getsize(path) < 24:
            raise Refused(f"{path} has {os.path.getsize(path)} bytes: want a GGUF file, which has 24 or more")
        self.data = np.memmap(path, mode="r")
        try:
            self._parse()
        except (struct.error, UnicodeDecodeError, IndexError) as e:
            raise Refused(f"{path}: the header is damaged or cut off ({e}): want a whole GGUF file") from e
        if self.keys.get("split.count", 0) > 1:
            raise Refused(f"{path} is one of {self.keys['split.count']} files of a split model: want a model in one file")

    def _parse(self):
        self.at = 0
        magic = self._take(4)
        if magic != MAGIC:
            raise Refused(f"{self.path} begins with {magic!r}: want {MAGIC!r}")
        version, tensors, keys = struct.unpack("<IQQ", self._take(20))
        if version not in (2, 3):
            raise Refused(f"{self.path} is GGUF version {version}: want 2 or 3")
        self.keys = {}
        for _ in range(keys):
            name = self._string()
            self.keys[name] = self._value(struct.unpack("<I", self._take(4))[0])
        self.tensors = {}
        for _ in range(tensors):
            name = self._string()
            dims = struct.unpack("<I", self._take(4))[0]
            if dims > DEEPEST:
                raise Refused(f"{self.path}: tensor {name!r} has {dims} dimensions: want at most {DEEPEST}")
            shape = struct.unpack(f"<{dims}Q", self._take(8 * dims))
            self.tensors[name] = (*struct.unpack("<IQ", self._take(12)), shape)
        align = self.keys.get("general.alignment", ALIGN)
        if not isinstance(align, int) or align < 1:
            raise Refused(f"{self.path}: general.alignment is {align!r}: want a power of two")
        self.start = -(-self.at // align) * align

    def _take(self, n):
        if self.at + n > len(self.data):
            raise Refused(f"{self.path} ends after {len(self.data)} bytes, within its header: want a whole GGUF file")
        self.at += n
        return self.data[self.at - n:self.at].tobytes()

    def _string(self):
        return self._take(struct.unpack("<Q", self._take(8))[0]).decode("utf-8", "surrogateescape")

    def _value(self, kind):
        if kind == 8:
            return self._string()
        if kind == 9:
            elem, n = struct.unpack("<IQ", self._take(12))
            if elem == 8:
                return [self._string() for _ in range(n)]
            code = self._code(elem)
            return list(struct.unpack(f"<{n}{code}", self._take(n * struct.calcsize(code))))
        code = self._code(kind)
        v = struct.unpack("<" + code, self._take(struct.calcsize("<" + code)))[0]
        return bool(v) if kind == 7 else v

    def _code(self, kind):
        code = SCALARS[kind] if kind < 8 else WIDE.get(kind)
        if code is None:
            raise Refused(f"{self.path} has a value of type {kind}: want a type of GGUF version 3")
        return code

    def key(self, name, default=None):
        """Returns a key's value. Without a default a key that is not there is refused."""
        if name in self.keys:
            return self.keys[name]
        if default is None:
            raise Refused(f"{self.path} has no key {name!r}: want one")
        return default

    def tensor(self, name):
        """Returns a tensor as float32, its shape reversed: a matrix is (outputs, inputs)."""
        kind, raw, shape = self._raw(name)
        return dequantise(kind, np.array(raw)).reshape(shape[::-1])

    def rows(self, name, ids):
        """Returns those rows of a matrix as float32: (ids, inputs)."""
        kind, raw, shape = self._raw(name)
        return dequantise(kind, np.ascontiguousarray(raw.reshape(shape[1], -1)[ids]).reshape(-1)).reshape(len(ids), shape[0])

    def _raw(self, name):
        """The type, bytes and shape of a tensor."""
        if name not in self.tensors:
            raise Refused(f"{self.path} has no tensor {name!r}: want one")
        kind, offset, shape = self.tensors[name]
        if kind not in BLOCKS:
            raise Refused(f"{self.path}: tensor {name!r} has type {kind}: want f32, f16, bf16, q4_0 to q5_1, q8_0, q4_k, q5_k or q6_k")
        elems, size = BLOCKS[kind]
        n = prod(shape)
        if not shape or shape[0] % elems:
            raise Refused(f"{self.path}: tensor {name!r} has shape {shape}: want rows of a multiple of {elems}")
        begin, length = self.start + offset, n // elems * size
        if begin + length > len(self.data):
            raise Refused(f"{self.path}: tensor {name!r} ends at byte {begin + length}, but the file at {len(self.data)}")
        return kind, self.data[begin:begin + length], shape


def dequantise(kind, b):
    """Returns the numbers in bytes b of a tensor as float32, one after the other. Layouts: ggml's ggml-common.h."""
    if kind in (F32, F16):
        return b.view("<f4" if kind == F32 else "<f2").astype(np.float32)
    if kind == BF16:
        return (b.view("<u2").astype(np.uint32) << 16).view(np.float32)
    b = b.reshape(-1, BLOCKS[kind][1])
    half = lambda part: np.ascontiguousarray(part).view("<f2").astype(np.float32)
    if kind == Q8_0:
        return (half(b[:, :2]) * b[:, 2:].view(np.int8)).reshape(-1)
    if kind in (Q4_0, Q4_1, Q5_0, Q5_1):
        return small(kind, b, half)
    return q6_k(b, half) if kind == Q6_K else q45_k(b, half, kind == Q5_K)


def small(kind, b, half):
    """Blocks of 32 with a scale, a least value in place of an offset (…_1), and four bits, or five, whose fifth are in a word."""
    at, five = (4 if kind in (Q4_1, Q5_1) else 2), kind in (Q5_0, Q5_1)
    low = b[:, at + 4 * five:]
    q = np.concatenate([low & 15, low >> 4], 1).astype(np.float32)
    if five:
        q += 16 * np.unpackbits(np.ascontiguousarray(b[:, at:at + 4]), axis=1, bitorder="little")
    if at == 4:
        return (half(b[:, :2]) * q + half(b[:, 2:4])).reshape(-1)
    return (half(b[:, :2]) * (q - (16 if five else 8))).reshape(-1)


def q45_k(b, half, five):
    s = b[:, 4:16]
    scale = np.concatenate([s[:, :4] & 63, (s[:, 8:] & 15) | (s[:, :4] >> 6 << 4)], 1).astype(np.float32)
    least = np.concatenate([s[:, 4:8] & 63, (s[:, 8:] >> 4) | (s[:, 4:8] >> 6 << 4)], 1).astype(np.float32)
    q = b[:, 48 if five else 16:].reshape(-1, 4, 1, 32)
    q = np.concatenate([q & 15, q >> 4], 2).reshape(-1, 8, 32)  # 8 groups of 32
    if five:  # bit i of a byte is the fifth of that element of group i
        q = q + (np.stack([b[:, 16:48] >> i & 1 for i in range(8)], 1) << 4)
    return ((half(b[:, :2]) * scale)[:, :, None] * q - (half(b[:, 2:4]) * least)[:, :, None]).reshape(-1)


def q6_k(b, half):
    low, high = b[:, :128].reshape(-1, 2, 64), b[:, 128:192].reshape(-1, 2, 32)
    low = np.concatenate([low & 15, low >> 4], 2).reshape(-1, 2, 4, 32)
    high = np.stack([high >> s & 3 for s in (0, 2, 4, 6)], 2)
    q = (low | high << 4).astype(np.float32) - 32
    scale = half(b[:, 208:210]) * np.ascontiguousarray(b[:, 192:208]).view(np.int8)
    return (scale[:, :, None] * q.reshape(-1, 16, 16)).reshape(-1)


def _string(s):
    raw = s.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(raw)) + raw


def _pack(value):
    """Returns value type and value. An int is a u32, a list of ints an array of i32, a float f32."""
    if isinstance(value, str):
        return struct.pack("<I", 8) + _string(value)
    if isinstance(value, bool):
        return struct.pack("<IB", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, list) and value:
        kind, code = {str: (8, ""), bool: (7, "B"), int: (5, "i"), float: (6, "f")}[type(value[0])]
        body = b"".join(map(_string, value)) if kind == 8 else struct.pack(f"<{len(value)}{code}", *value)
        return struct.pack("<IIQ", 9, kind, len(value)) + body
    raise TypeError(f"{value!r}: want a string, bool, int, float or a list of one of them that is not empty")


def write(path, keys, tensors, kind=F16):
    """Writes a file of version 3 with keys and tensors (name to array): vectors as f32, matrices of that kind. Returns its size."""
    head, blobs, offset = [], [], 0
    for name, value in keys.items():
        head.append(_string(name) + _pack(value))
    for name, array in tensors.items():
        array = np.asarray(array, np.float32)
        if not np.isfinite(array).all():
            raise Refused(f"{path}: tensor {name!r} is not finite everywhere: training has diverged, want a lower learning rate")
        as_type = F32 if array.ndim == 1 else kind
        raw = array.astype("<f4" if as_type == F32 else "<f2")
        if not np.isfinite(raw).all():
            raise Refused(f"{path}: tensor {name!r} holds {np.abs(array).max():.3g}: f16 ends at 65504, want --type f32")
        shape = array.shape[::-1]
        head.append(_string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, as_type, offset))
        blobs.append(raw.tobytes())
        offset += -(-len(blobs[-1]) // ALIGN) * ALIGN
    header = MAGIC + struct.pack("<IQQ", 3, len(tensors), len(keys)) + b"".join(head)
    partial = f"{path}.part"
    with open(partial, "wb") as f:
        for part in [header, *blobs]:
            f.write(part + bytes(-len(part) % ALIGN))
        size = f.tell()
    os.replace(partial, path)
    return size
