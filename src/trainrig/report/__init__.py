"""Records to something to look at: joined rows, ladders, terminal, markdown, HTML.

Report is handed records; it reads no files and measures nothing.
"""

from trainrig.report.join import Row, join
from trainrig.report.ladder import Gap, Ladder, Rung, ladder
from trainrig.report.view import RunView

__all__ = ["Gap", "Ladder", "Row", "RunView", "Rung", "join", "ladder"]
