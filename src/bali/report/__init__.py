"""A trained model as one page to look at: `bali.report.html(model, record)`."""

from bali.report.page import html

__all__ = ["html"]
