"""The command line: arguments in, words out.

Knows how to ask, to show progress and to say what went wrong in one line. Does not know how anything is computed.
"""
