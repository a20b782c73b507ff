"""Engines behind one face: start, publish weights, pause, go on, stop."""
