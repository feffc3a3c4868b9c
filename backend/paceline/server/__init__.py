"""The wire side: session state machine, bridge between thread and loop, ASGI application."""
