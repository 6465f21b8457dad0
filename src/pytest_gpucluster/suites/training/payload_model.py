"""The model of the training suite, its sizes and its data. A part of payload.py; Python 3.8 and torch."""

from typing import Any, NamedTuple


class Shape(NamedTuple):
    """The size of a model. `least_gib`: GPU memory from which it is chosen."""

    name: str
    layers: int
    width: int
    heads: int
    tokens: int
    batch: int
    vocabulary: int
    least_gib: int


# from small to large
SHAPES = (
    Shape("tiny", 2, 64, 4, 32, 2, 256, 0),
    Shape("small", 8, 1024, 16, 1024, 4, 32000, 0),
    Shape("medium", 8, 2048, 16, 2048, 4, 32000, 24),
    Shape("large", 8, 4096, 32, 2048, 4, 32000, 64),
)
NAMES = [shape.name for shape in SHAPES]
SEED = 20240229


def chosen(name: str, gib: float) -> int:
    """Return the index of a shape: of this name, or for `auto` by the GPU memory in GiB (0: no GPU)."""
    if name != "auto":
        return NAMES.index(name)
    return max(i for i, shape in enumerate(SHAPES) if i == 0 or (gib and gib >= shape.least_gib))


def flops_of(shape: Any, parameters: int) -> float:
    """Return FLOPs of one step and rank: 6 PBS for the products, 6 LDS^2B for causal attention."""
    size = shape.batch * shape.tokens
    return 6.0 * parameters * size + 6.0 * shape.layers * shape.width * shape.tokens * size


def tokens_of(torch: Any, shape: Any, steps: int, slot: int) -> Any:
    """Return (steps, batch, tokens + 1) numbers: products of two draws, so that some are frequent.

    Integers of the CPU's generator: the same on every machine.
    """
    made = torch.Generator().manual_seed(SEED + 1 + slot)
    size = (steps, shape.batch, shape.tokens + 1)
    first, second = (torch.randint(0, shape.vocabulary, size, generator=made) for _ in range(2))
    return first * second // shape.vocabulary


def decoder(torch: Any, shape: Any, device: Any, dtype: Any) -> Any:
    """Return a decoder with seeded parameters: the same on every GPU of one model."""
    nn, functional = torch.nn, torch.nn.functional

    class Block(torch.nn.Module):
        """Attention and a feed-forward part, each behind a norm."""

        def __init__(self) -> None:
            super().__init__()
            width = shape.width
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv = nn.Linear(width, 3 * width, bias=False)
            self.out = nn.Linear(width, width, bias=False)
            self.up = nn.Linear(width, 4 * width, bias=False)
            self.down = nn.Linear(4 * width, width, bias=False)

        def forward(self, x: Any) -> Any:
            """Return the states after this layer."""
            batch, tokens, width = x.shape
            parts = self.qkv(self.norm1(x)).view(batch, tokens, 3, shape.heads, width // shape.heads)
            query, key, value = (part.transpose(1, 2) for part in parts.unbind(2))
            mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))
            return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))

    class Decoder(torch.nn.Module):
        """Embeddings, blocks, head. `on_input`: called with the gradient of the embeddings."""

        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(shape.vocabulary, shape.width)
            self.positions = nn.Embedding(shape.tokens, shape.width)
            self.blocks = nn.ModuleList(Block() for _ in range(shape.layers))
            self.norm = nn.LayerNorm(shape.width)
            self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
            self.on_input = None  # type: Any

        def forward(self, tokens: Any) -> Any:
            """Return the mean loss of predicting each next token."""
            given, wanted = tokens[:, :-1], tokens[:, 1:]
            x = self.embed(given) + self.positions.weight
            if self.on_input is not None:
                x.register_hook(self.on_input)
            for block in self.blocks:
                x = block(x)
            logits = self.head(self.norm(x))
            return functional.cross_entropy(logits.reshape(-1, shape.vocabulary).float(), wanted.reshape(-1))

    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            model = Decoder()
    finally:
        torch.set_default_dtype(before)
    torch.manual_seed(SEED)
    for name, parameter in model.named_parameters():
        if "norm" not in name:
            nn.init.normal_(parameter, std=0.02)
    return model
