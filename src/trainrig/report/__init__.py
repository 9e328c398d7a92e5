"""Records to something to look at: documents, charts, and their renderers.

Report is handed records and what `analysis` says of them; it reads no files and measures nothing.
"""
