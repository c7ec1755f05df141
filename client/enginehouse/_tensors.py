"""Tensors that arrive in chunks: whole rows of little-endian numbers, put together into numpy arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from enginehouse._gen.enginehouse.common.v1 import common_pb2
from enginehouse._gen.enginehouse.inference.v1 import inference_pb2

if TYPE_CHECKING:
    import numpy as np

    from enginehouse.outputs import CompletionOutput

_NUMPY_TYPES = {
    common_pb2.DATA_TYPE_FLOAT32: "<f4",
    common_pb2.DATA_TYPE_FLOAT16: "<f2",
    common_pb2.DATA_TYPE_INT32: "<i4",
    common_pb2.DATA_TYPE_INT64: "<i8",
    common_pb2.DATA_TYPE_INT8: "i1",
    common_pb2.DATA_TYPE_UINT8: "u1",
    common_pb2.DATA_TYPE_BOOL: "?",
}


class ChunkStore:
    """The chunks of one request, by kind, output and name."""

    def __init__(self) -> None:
        self._chunks: dict[tuple[int, int, str], list[inference_pb2.TensorChunk]] = {}

    def add(self, chunk: inference_pb2.TensorChunk) -> None:
        self._chunks.setdefault((chunk.kind, chunk.output_index, chunk.name), []).append(chunk)

    def get(self, kind: int, output_index: int, name: str = "") -> np.ndarray | None:
        """[rows, *row_shape] in the chunks' type, bfloat16 as float32; None when none came."""
        import numpy as np

        chunks = self._chunks.get((kind, output_index, name))
        return np.concatenate([_array(chunk) for chunk in chunks]) if chunks else None

    def attach(self, output: CompletionOutput) -> None:
        """Sets the tensors of an output that has ended."""
        output.generation_logits = self.get(inference_pb2.TENSOR_KIND_GENERATION_LOGITS, output.index)
        for kind, attribute, index in (
            (inference_pb2.TENSOR_KIND_ADDITIONAL_CONTEXT_OUTPUT, "additional_context_outputs", 0),
            (inference_pb2.TENSOR_KIND_ADDITIONAL_GENERATION_OUTPUT, "additional_generation_outputs", output.index),
        ):
            names = [key[2] for key in self._chunks if key[:2] == (kind, index)]
            if names:
                setattr(output, attribute, {name: self.get(kind, index, name) for name in names})


def _array(chunk: inference_pb2.TensorChunk) -> np.ndarray:
    import numpy as np

    shape = (chunk.rows, *chunk.row_shape)
    if chunk.dtype == common_pb2.DATA_TYPE_BFLOAT16:
        bits = np.frombuffer(chunk.data, "<u2").astype("<u4") << 16
        return bits.view("<f4").reshape(shape)
    return np.frombuffer(chunk.data, _NUMPY_TYPES[chunk.dtype]).reshape(shape)
