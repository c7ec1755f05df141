// Streams an answer from an Enginehouse inference daemon. Nothing of Enginehouse is used but its .proto files.
//
//   npm install
//   node generate.js "What is the capital of France?" --model smollm2 --chat
//
// Options: --target HOST:PORT (localhost:50052), --model NAME (the only served one), --chat, --max-tokens N (64),
// --ids (print token ids too), --protos DIR.

'use strict';

const path = require('node:path');
const { parseArgs } = require('node:util');
const grpc = require('@grpc/grpc-js');
const protoLoader = require('@grpc/proto-loader');

const { values: options, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    target: { type: 'string', default: 'localhost:50052' },
    model: { type: 'string', default: '' },
    chat: { type: 'boolean', default: false },
    ids: { type: 'boolean', default: false },
    'max-tokens': { type: 'string', default: '64' },
    protos: { type: 'string', default: path.join(__dirname, '..', '..', 'protos') },
  },
});
const prompt = positionals.join(' ') || 'The capital of France is';

// 1. The contract, read at run time. enums arrive as names, absent fields stay undefined.
const definition = protoLoader.loadSync('enginehouse/inference/v1/inference.proto', {
  includeDirs: [options.protos, path.join(options.protos, 'third_party')],
  enums: String,
  longs: Number,
  oneofs: true,
});
const { InferenceService } = grpc.loadPackageDefinition(definition).enginehouse.inference.v1;

// 2. One stream carries any number of requests; this program makes one.
const client = new InferenceService(options.target, grpc.credentials.createInsecure(), {
  'grpc.max_receive_message_length': 32 * 1024 * 1024,
  'grpc.keepalive_time_ms': 30_000,
});
const stream = client.Generate();

stream.write({
  start: {
    requestId: '1',
    model: options.model,
    ...(options.chat ? { chat: { messages: [{ role: 'user', content: prompt }] } } : { text: prompt }),
    sampling: { maxTokens: Number(options['max-tokens']) },
    stream: true,
  },
});
process.once('SIGINT', () => stream.write({ cancel: { requestId: '1' } }));

// 3. Events of one step share a message. `event` names the field of the oneof that is set.
const ids = [];
stream.on('data', ({ events }) => {
  for (const item of events) {
    switch (item.event) {
      case 'delta':
        ids.push(...item.delta.tokenIds);
        process.stdout.write(item.delta.text);
        break;
      case 'done':
        process.stdout.write('\n');
        if (options.ids) console.log(`ids: ${ids.join(' ')}`);
        console.error(`${item.done.usage.promptTokens} prompt tokens, ${item.done.usage.completionTokens} generated`);
        stream.end(); // half-close: the server ends the stream once nothing lives on it
        break;
      case 'error': // a request that fails does so alone, in band
        fail(item.error.message);
        stream.end();
        break;
    }
  }
});

// 4. The stream's own status: a daemon that is not there, or a broken connection.
stream.on('error', (error) => {
  const { UNAVAILABLE, UNIMPLEMENTED } = grpc.status;
  if (error.code === UNAVAILABLE) fail(`no daemon answers at ${options.target}: start one with \`enginehouse inference\``);
  else if (error.code === UNIMPLEMENTED) fail(`what answers at ${options.target} is not an inference daemon`);
  else fail(error.details);
});
stream.on('end', () => client.close());

function fail(message) {
  console.error(`Error: ${message}`);
  process.exitCode = 1;
}
