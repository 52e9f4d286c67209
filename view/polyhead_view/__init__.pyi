from .plots import draw_heads as draw_heads
from .plots import save as save
