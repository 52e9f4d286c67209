"""PyTorch's side of the table."""

import torch

from gpu.card import open_card
from gpu.graph import full_inputs
from gpu.plan import Plan
from gpu.torch_side import TorchEncoder, best_kernels
from polyhead_model import Encoder


def test_other_kernels_give_the_same_eager_and_compiled(plan: Plan) -> None:
    ((_, config),) = plan.encoders
    card = open_card("cpu")
    torch.manual_seed(0)
    side = TorchEncoder(card, Encoder(config).eval(), "fp32")
    inputs = full_inputs(card, config, 3, 8)
    wanted = side.eager(inputs)()

    with best_kernels():
        side.compile()
        compiled, eager = side.compiled(inputs)(), side.eager(inputs)()

    torch.testing.assert_close(eager, wanted)
    torch.testing.assert_close(compiled, wanted)
