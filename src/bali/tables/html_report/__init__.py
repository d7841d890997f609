"""A trained model as one page to look at: `bali.tables.html_report.html(model, record)`."""

from bali.tables.html_report.html_page import html

__all__ = ["html"]
