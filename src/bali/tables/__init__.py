"""Tables in files: CSV and Parquet in, numbers for the estimators out, predictions back into files.

A file is opened by `open_table`; `plan_columns` decides what each of its columns is, `TableEncoder` turns rows into numbers,
`learn_target` says what is to be predicted. Everything that is wrong with a file is a `TableError` of one line, which
names the column, the row and the remedy. Rows are counted from 1, the header not included.
"""

from bali.tables.encoder import Surprises, TableEncoder
from bali.tables.errors import TableError
from bali.tables.kinds import plan_columns
from bali.tables.opening import open_table
from bali.tables.targets import Target, Task, learn_target
from bali.tables.writing import prediction_writer

__all__ = [
    "Surprises",
    "TableEncoder",
    "TableError",
    "Target",
    "Task",
    "learn_target",
    "open_table",
    "plan_columns",
    "prediction_writer",
]
