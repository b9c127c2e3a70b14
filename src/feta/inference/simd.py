"""Vectors of float32 for numba: loads, stores, products and sums that stay in registers.

numba keeps small arrays in memory, which is too slow for an accumulator. These functions give it LLVM's own vector
types instead. LLVM splits a vector that is wider than the machine's, so that every width is right on every CPU.
Addresses are integers: a kernel then takes few, cheap arguments. Imported only where numba is installed.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

FLOAT, I16, I32, I64 = ir.FloatType(), ir.IntType(16), ir.IntType(32), ir.IntType(64)


class Vector(types.Type):
    """`width` floats in registers."""

    def __init__(self, width: int) -> None:
        self.width = width
        super().__init__(name=f"FetaVector{width}")


@register_model(Vector)
class _Model(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Vector) -> None:
        super().__init__(manager, kind, floats(kind.width))


def floats(width: int) -> ir.VectorType:
    return ir.VectorType(FLOAT, width)


VECTORS = {width: Vector(width) for width in (4, 8, 16)}


def _at(builder: Any, address: Any, kind: Any) -> Any:
    return builder.inttoptr(address, kind.as_pointer())


def _fma(builder: Any, width: int, *factors: Any) -> Any:
    kind = floats(width)
    function = ir.FunctionType(kind, [kind] * 3)
    return builder.call(cgutils.get_or_insert_function(builder.module, function, f"llvm.fma.v{width}f32"), factors)


def _picked(builder: Any, one: Any, other: Any, places: list[int]) -> Any:
    return builder.shuffle_vector(one, other, ir.Constant(ir.VectorType(I32, len(places)), places))


@intrinsic
def load_float(typing: Any, address: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(_at(builder, args[0], FLOAT), align=4)

    return types.float32(types.int64), code


@intrinsic
def store_float(typing: Any, address: Any, value: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[1], _at(builder, args[0], FLOAT), align=4)
        return context.get_dummy_value()

    return types.void(types.int64, types.float32), code


def _load_whole(kind: Any, align: int, signed: bool) -> Any:
    @intrinsic
    def load(typing: Any, address: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            found = builder.load(_at(builder, args[0], kind), align=align)
            if kind is I64:
                return found
            return builder.sext(found, I64) if signed else builder.zext(found, I64)

        return types.int64(types.int64), code

    return load


load_u16, load_i32, load_i64 = _load_whole(I16, 2, False), _load_whole(I32, 4, True), _load_whole(I64, 8, True)


@intrinsic
def call(typing: Any, function: Any) -> Any:
    """Call a C function without arguments by its address; what it returns as an int."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.sext(builder.call(_at(builder, args[0], ir.FunctionType(I32, [])), []), I64)

    return types.int64(types.int64), code


@intrinsic
def bits_set(typing: Any, word: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return types.int64(types.int64), code


@intrinsic
def gather_fma(typing: Any, x: Any, columns: Any, values: Any, sums: Any) -> Any:
    """sums + values * x[columns] for sixteen non-zeros. One load fetches four indices, x is put together by inserts:
    on the machines tried that is faster than scalar products and than the gather instruction.
    """
    kind = VECTORS[16]

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        start, words = _at(builder, args[0], FLOAT), _at(builder, args[1], I64)
        quads = []
        for quad in range(4):
            word, found = builder.load(builder.gep(words, [I64(quad)]), align=2), ir.Constant(floats(4), ir.Undefined)
            for lane in range(4):
                column = builder.and_(builder.lshr(word, I64(16 * lane)), I64(0xFFFF))
                found = builder.insert_element(found, builder.load(builder.gep(start, [column]), align=4), I32(lane))
            quads.append(found)
        low, high = (_picked(builder, quads[i], quads[i + 1], list(range(8))) for i in (0, 2))
        gathered = _picked(builder, low, high, list(range(16)))
        return _fma(builder, 16, builder.load(_at(builder, args[2], floats(16)), align=4), gathered, args[3])

    return kind(types.int64, types.int64, types.int64, kind), code


@intrinsic
def sums_of_four(typing: Any, vector: Any) -> Any:
    """The sums of each four of sixteen numbers, as one vector."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        a, b, c, d = (_picked(builder, args[0], args[0], list(range(i, i + 4))) for i in range(0, 16, 4))
        ab = builder.fadd(_picked(builder, a, b, [0, 4, 1, 5]), _picked(builder, a, b, [2, 6, 3, 7]))
        cd = builder.fadd(_picked(builder, c, d, [0, 4, 1, 5]), _picked(builder, c, d, [2, 6, 3, 7]))
        return builder.fadd(_picked(builder, ab, cd, [0, 1, 4, 5]), _picked(builder, ab, cd, [2, 3, 6, 7]))

    return VECTORS[4](VECTORS[16]), code


@intrinsic
def turn_four(typing: Any, source: Any, source_stride: Any, target: Any, target_stride: Any) -> Any:
    """Turn a square of 4 × 4 floats over; strides between rows in bytes."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        source, step, target, pace = args
        places = [builder.add(source, builder.mul(step, I64(i))) for i in range(4)]
        a, b, c, d = (builder.load(_at(builder, place, floats(4)), align=4) for place in places)
        pairs = [(_picked(builder, one, two, [0, 4, 1, 5]), _picked(builder, one, two, [2, 6, 3, 7]))
                 for one, two in ((a, b), (c, d))]  # fmt: skip
        for i in range(4):
            left, right = pairs[0][i // 2], pairs[1][i // 2]
            column = _picked(builder, left, right, [0, 1, 4, 5] if i % 2 == 0 else [2, 3, 6, 7])
            place = builder.add(target, builder.mul(pace, I64(i)))
            builder.store(column, _at(builder, place, floats(4)), align=4)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, types.int64), code


@intrinsic
def lane(typing: Any, vector: Any, index: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.extract_element(args[0], builder.trunc(args[1], I32))

    return types.float32(vector, types.int64), code


@intrinsic
def add(typing: Any, a: Any, b: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fadd(*args)

    return a(a, a), code


@intrinsic
def multiply_add(typing: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _fma(builder, a.width, *args)

    return a(a, a, a), code


@intrinsic
def relu(typing: Any, a: Any) -> Any:
    """max(a, 0); NaN stays NaN, as with torch."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        zero = ir.Constant(floats(a.width), [0.0] * a.width)
        return builder.select(builder.fcmp_ordered("<", args[0], zero), zero, args[0])

    return a(a), code


@intrinsic
def total(typing: Any, a: Any) -> Any:
    """The sum of a vector's entries."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        (found,), width = args, a.width
        while width > 1:
            width //= 2
            low, high = list(range(width)), list(range(width, 2 * width))
            found = builder.fadd(_picked(builder, found, found, low), _picked(builder, found, found, high))
        return builder.extract_element(found, I32(0))

    return types.float32(a), code


def vector_functions(width: int) -> tuple[Any, Any, Any, Any]:
    """zero(), load(address), store(address, vector) and spread(number) for vectors of one width."""
    kind, llvm = VECTORS[width], floats(width)

    @intrinsic
    def zero(typing: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return ir.Constant(llvm, [0.0] * width)

        return kind(), code

    @intrinsic
    def load(typing: Any, address: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.load(_at(builder, args[0], llvm), align=4)

        return kind(types.int64), code

    @intrinsic
    def store(typing: Any, address: Any, value: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            builder.store(args[1], _at(builder, args[0], llvm), align=4)
            return context.get_dummy_value()

        return types.void(types.int64, kind), code

    @intrinsic
    def spread(typing: Any, number: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            first = builder.insert_element(ir.Constant(llvm, ir.Undefined), args[0], I32(0))
            return _picked(builder, first, first, [0] * width)

        return kind(types.float32), code

    return zero, load, store, spread


@intrinsic
def expand(typing: Any, address: Any, mask: Any) -> Any:
    """Sixteen floats: the next values in memory where the mask has a bit, zero elsewhere."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        bits = ir.VectorType(ir.IntType(1), 16)
        chosen = builder.bitcast(builder.trunc(args[1], I16), bits)
        function = ir.FunctionType(floats(16), [FLOAT.as_pointer(), bits, floats(16)])
        expandload = cgutils.get_or_insert_function(builder.module, function, "llvm.masked.expandload.v16f32")
        rest = ir.Constant(floats(16), [0.0] * 16)
        return builder.call(expandload, [_at(builder, args[0], FLOAT), chosen, rest])

    return VECTORS[16](types.int64, types.int64), code
