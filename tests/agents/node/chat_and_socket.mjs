import OpenAI from 'openai';
import { ResponsesWS } from 'openai/resources/responses/ws';

const [address] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${address}/v1`, apiKey: 'not needed' });
const model = (await client.models.list()).data[0].id;

// A stream of chat chunks with a tool call, put together by the client.
const tools = [{ type: 'function', function: { name: 'add', parameters: { type: 'object' } } }];
const runner = client.chat.completions.stream({
  model,
  messages: [{ role: 'user', content: 'Add.' }],
  tools,
  stream_options: { include_usage: true },
});
const completion = await runner.finalChatCompletion();
const [call] = completion.choices[0].message.tool_calls;

// The same over the WebSocket, as events.
const socket = new ResponsesWS(client);
const events = [];
const response = await new Promise((resolve, reject) => {
  socket.on('error', reject);
  socket.on('event', (event) => {
    events.push(event.type);
    if (event.type === 'response.completed') resolve(event.response);
  });
  socket.send({ type: 'response.create', model, input: 'Hello' });
});
socket.close();

console.log(
  JSON.stringify({
    call: [call.function.name, call.function.arguments],
    finish: completion.choices[0].finish_reason,
    tokens: completion.usage.completion_tokens,
    events,
    output: response.output.map((item) => item.type),
  }),
);
