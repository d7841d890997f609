"""Tables in files: CSV and Parquet in, a trained model, its report and its predictions out.

Knows cells, columns and what makes a target. Whatever is wrong with a file is an `errors.TableError` of one line, which
names the column, the row (counted from 1, without the header) and the remedy. Does not know how a posterior is inferred.
"""
