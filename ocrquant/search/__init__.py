"""The search for any torch module: ``search(module, batches, loss_or_logits, budget=5.5)``.

Knows ``nn.Module``, a function that runs it, and the parts of this package that score and choose. Knows no
document model, no page and no recipe beside its budget.
"""

from ocrquant.search.result import SearchResult
from ocrquant.search.search import search

__all__ = ["SearchResult", "search"]
