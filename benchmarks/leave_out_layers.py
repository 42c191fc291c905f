#!/usr/bin/env python3
"""Writes a GGUF file with some of the layers of another: a draft model that needs no training.

    benchmarks/leave_out_layers.py MODEL.gguf DRAFT.gguf 0 1 2 27 28 29      the layers that are kept

The keys are those of the file, but for the number of layers. Keys with a list for each layer are not supported.
"""
import re
import struct
import sys

SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # of a key's value, by its type
STRING, ARRAY = 8, 9


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, count):
        self.at += count
        return self.data[self.at - count:self.at]

    def number(self, code):
        return struct.unpack('<' + code, self.take(struct.calcsize(code)))[0]

    def string(self):
        return self.take(self.number('Q'))

    def skip_value(self, kind):
        if kind == STRING:
            self.string()
        elif kind == ARRAY:
            kind, count = self.number('I'), self.number('Q')
            for _ in range(count):
                self.skip_value(kind)
        else:
            self.take(SIZES[kind])


def text(value):
    return struct.pack('<Q', len(value)) + value


def main(source, target, kept):
    with open(source, 'rb') as file:
        reader = Reader(file.read())
    head = reader.take(8)
    num_tensors, num_keys = reader.number('Q'), reader.number('Q')
    keys, alignment, num_layers = [], 32, 0
    for _ in range(num_keys):
        name, kind = reader.string(), reader.number('I')
        begin = reader.at
        reader.skip_value(kind)
        value = reader.data[begin:reader.at]
        if name == b'general.alignment':
            alignment = struct.unpack('<I', value)[0]
        if name.endswith(b'.block_count'):
            num_layers, value = struct.unpack('<I', value)[0], struct.pack('<I', len(kept))
        keys.append(text(name) + struct.pack('<I', kind) + value)
    tensors = []
    for _ in range(num_tensors):
        name, dims = reader.string(), reader.number('I')
        shape, kind, offset = reader.take(8 * dims), reader.number('I'), reader.number('Q')
        tensors.append((name, struct.pack('<I', dims) + shape + struct.pack('<I', kind), offset))
    data = -(-reader.at // alignment) * alignment
    ends = sorted(offset for _, _, offset in tensors) + [len(reader.data) - data]
    if not kept or not all(0 <= layer < num_layers for layer in kept):
        sys.exit(f'{source} has layers 0 to {num_layers - 1}: these or some of them can be kept')
    infos, blobs, size = [], [], 0
    for name, info, offset in tensors:
        layer = re.match(rb'blk\.(\d+)\.', name)
        if layer:
            if int(layer[1]) not in kept:
                continue
            name = b'blk.%d.%s' % (kept.index(int(layer[1])), name[layer.end():])
        blob = reader.data[data + offset:data + next(end for end in ends if end > offset)]
        blob += b'\0' * (-len(blob) % alignment)
        infos.append(text(name) + info + struct.pack('<Q', size))
        blobs.append(blob)
        size += len(blob)
    out = head + struct.pack('<QQ', len(infos), num_keys) + b''.join(keys) + b''.join(infos)
    with open(target, 'wb') as file:
        file.write(out + b'\0' * (-len(out) % alignment) + b''.join(blobs))


if __name__ == '__main__':
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2], [int(layer) for layer in sys.argv[3:]])
