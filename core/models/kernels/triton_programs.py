"""What runs on the GPU: passes over maps (N, H, W, C), computed in float32. Only
`core.models.kernels.on_gpu` imports this file, and says what the arguments are.
"""

# Triton reads the bodies of these functions; its types are its own
# mypy: ignore-errors
import triton
import triton.language as tl


@triton.jit
def _entering(x, shortcut, at, live, a, b, SHORTCUT: tl.constexpr):
    """A pixel x and z = a x + b + shortcut, what enters f."""
    value = tl.load(x + at, mask=live, other=0.0).to(tl.float32)
    z = a * value + b
    if SHORTCUT:
        z += tl.load(shortcut + at, mask=live, other=0.0).to(tl.float32)
    return value, z


@triton.jit
def _of_entering(dy, z, n, position, c, live, H, W, C, slope, POOL: tl.constexpr):
    """dz, the gradient of z at a position: that of its window, shared by the window's pixels."""
    h, w = position // W // POOL, position % W // POOL
    inside = live & (h < H // POOL) & (w < W // POOL)
    at = n * (H // POOL) * (W // POOL) * C + (h * (W // POOL) + w) * C + c
    g = tl.load(dy + at, mask=inside, other=0.0).to(tl.float32) / (POOL * POOL)
    return tl.where(z <= 0, slope * g, g)


@triton.jit
def forward(
    x, shortcut, scale, shift, y, H, W, C, stride, slope,
    POOL: tl.constexpr, SHORTCUT: tl.constexpr, P: tl.constexpr, C_ALL: tl.constexpr,
):  # fmt: skip
    """y = pool(f(scale x + shift + shortcut)) at some positions of one image."""
    n = tl.program_id(0).to(tl.int64)
    position = tl.program_id(1) * P + tl.arange(0, P)[:, None]
    c = tl.arange(0, C_ALL)[None, :]
    rows, columns = H // POOL, W // POOL
    live = (position < rows * columns) & (c < C)
    a = tl.load(scale + n * stride + c, mask=c < C, other=0.0)
    b = tl.load(shift + n * stride + c, mask=c < C, other=0.0)
    corner = (position // columns * POOL * W + position % columns * POOL) * C + c
    total = tl.zeros((P, C_ALL), tl.float32)
    for i in tl.static_range(POOL):
        for j in tl.static_range(POOL):
            at = n * H * W * C + corner + (i * W + j) * C
            _, z = _entering(x, shortcut, at, live, a, b, SHORTCUT)
            total += tl.where(z <= 0, slope * z, z)
    to = n * rows * columns * C + position * C + c
    tl.store(y + to, (total / (POOL * POOL)).to(y.dtype.element_ty), mask=live)


@triton.jit
def backward(
    x, shortcut, dy, scale, shift, slant, offset, dx, dz, H, W, C, stride, line_stride, slope,
    POOL: tl.constexpr, SHORTCUT: tl.constexpr, LINE: tl.constexpr,
    P: tl.constexpr, C_ALL: tl.constexpr,
):  # fmt: skip
    """dx = scale dz + slant x + offset, and dz, at some positions of one image."""
    n = tl.program_id(0).to(tl.int64)
    position = tl.program_id(1) * P + tl.arange(0, P)[:, None]
    c = tl.arange(0, C_ALL)[None, :]
    live = (position < H * W) & (c < C)
    a = tl.load(scale + n * stride + c, mask=c < C, other=0.0)
    b = tl.load(shift + n * stride + c, mask=c < C, other=0.0)
    at = n * H * W * C + position * C + c
    value, z = _entering(x, shortcut, at, live, a, b, SHORTCUT)
    d = _of_entering(dy, z, n, position, c, live, H, W, C, slope, POOL)
    if SHORTCUT:
        tl.store(dz + at, d.to(dz.dtype.element_ty), mask=live)
    d = a * d
    if LINE:
        d += tl.load(slant + n * line_stride + c, mask=c < C, other=0.0) * value
        d += tl.load(offset + n * line_stride + c, mask=c < C, other=0.0)
    tl.store(dx + at, d.to(dx.dtype.element_ty), mask=live)


@triton.jit
def moments(x, pivot, plain, square, positions, C, P: tl.constexpr, C_SOME: tl.constexpr):
    """Sums of x - pivot and of its square over the positions of one image."""
    n = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * C_SOME + tl.arange(0, C_SOME)[None, :]
    k = tl.load(pivot + c, mask=c < C, other=0.0)
    one = tl.zeros((P, C_SOME), tl.float32)
    two = tl.zeros((P, C_SOME), tl.float32)
    for first in range(0, positions, P):
        position = first + tl.arange(0, P)[:, None]
        live = (position < positions) & (c < C)
        value = tl.load(x + (n * positions + position) * C + c, mask=live, other=0.0)
        off = tl.where(live, value.to(tl.float32) - k, 0.0)
        one += off
        two += off * off
    _store_sums(plain, square, one, two, n, c, C)


@triton.jit
def sums(
    x, shortcut, dy, scale, shift, mean, plain, centred, H, W, C, stride, mean_stride, slope,
    POOL: tl.constexpr, SHORTCUT: tl.constexpr, P: tl.constexpr, C_SOME: tl.constexpr,
):  # fmt: skip
    """Sums of dz and of dz (x - mean) over the positions of one image."""
    n = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * C_SOME + tl.arange(0, C_SOME)[None, :]
    a = tl.load(scale + n * stride + c, mask=c < C, other=0.0)
    b = tl.load(shift + n * stride + c, mask=c < C, other=0.0)
    m = tl.load(mean + n * mean_stride + c, mask=c < C, other=0.0)
    one = tl.zeros((P, C_SOME), tl.float32)
    two = tl.zeros((P, C_SOME), tl.float32)
    for first in range(0, H * W, P):
        position = first + tl.arange(0, P)[:, None]
        live = (position < H * W) & (c < C)
        at = (n * H * W + position) * C + c
        value, z = _entering(x, shortcut, at, live, a, b, SHORTCUT)
        d = _of_entering(dy, z, n, position, c, live, H, W, C, slope, POOL)
        one += d
        two += d * (value - m)
    _store_sums(plain, centred, one, two, n, c, C)


@triton.jit
def _store_sums(first, second, one, two, n, c, C):
    at = n * C + c
    tl.store(first + at, tl.sum(one, 0)[None, :], mask=c < C)
    tl.store(second + at, tl.sum(two, 0)[None, :], mask=c < C)
