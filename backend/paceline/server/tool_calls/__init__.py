"""From a model's text to messages, tool calls and reasoning, while it is being written."""
