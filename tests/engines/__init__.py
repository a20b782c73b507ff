"""Scripted fake engines: real HTTP servers on loopback that misbehave on request."""
