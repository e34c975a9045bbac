"""Language models with their sessions' attention state in the worker: a turn computes its new tokens alone."""

from __future__ import annotations

from models.decoder.adapter import Adapter
from models.decoder.blocks import BLOCK, Blocks
from models.decoder.decoder import Decoder, Sizes
from models.decoder.disk import BlockFolder
from models.decoder.figures import Figures
from models.decoder.generation import Generation
from models.decoder.message import Message
from models.decoder.turn import Finish, Piece, Sampling, Turn, Usage

__all__ = [
    "BLOCK",
    "Adapter",
    "BlockFolder",
    "Blocks",
    "Decoder",
    "Figures",
    "Finish",
    "Generation",
    "Message",
    "Piece",
    "Sampling",
    "Sizes",
    "Turn",
    "Usage",
]
