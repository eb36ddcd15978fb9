"""A `Timeline` as one HTML file: ranks as rows, copies over tiles in the same colours, waits, critical path.

rows.py    Timeline -> the numbers that are drawn
page.py    numbers, page.css and page.js -> the file
page.js    draws in the browser, and tells what the pointer is on
"""

from .page import LIMIT, html_picture

__all__ = ["LIMIT", "html_picture"]
