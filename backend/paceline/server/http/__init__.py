"""The same engine over plain HTTP, in the forms that chat programs, agents and editors expect.

Each endpoint turns its body into client events of the WebSocket protocol, lets a session of its own
answer them, and shows the session's events in its own form:

    body --parse--> Ask(events, view) --> Exchange(session) --events--> view --> JSON or SSE
"""
