from .figures import save as save
from .plots import draw_heads as draw_heads
from .plots import draw_pair as draw_pair
from .plots import draw_scores as draw_scores
from .plots import draw_similarity as draw_similarity
from .similarity import Similarity as Similarity
from .similarity import TokenPair as TokenPair
from .similarity import explain_similarity as explain_similarity
