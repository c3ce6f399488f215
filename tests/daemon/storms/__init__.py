"""Storms of faults over a node, and what has to be true in the calms between them.

``weather`` draws storms as plain values, ``world`` and ``files`` say what is true then, ``machines`` and ``node`` make
it happen, ``truth``, ``trials`` and ``use`` look at what came of it, ``campaign`` is one life through all of it.
"""
