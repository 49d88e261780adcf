import { generateObject, generateText, Output, streamObject, streamText, tool } from 'ai'
import { createAnthropic } from '@ai-sdk/anthropic'
import { createOpenAI } from '@ai-sdk/openai'
import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { z } from 'zod'

// The structured modes of Vercel's ai: the library checks each answer by the schema. Streamed modes must show parts, however
// few: a pass commits many tokens of a form at once.
const { BASE, MODEL } = process.env
const baseURL = BASE + '/v1', apiKey = 'any', failed = []
const openai = createOpenAI({ baseURL, apiKey })
const models = {
  'openai-compatible': createOpenAICompatible({ name: 'local', baseURL, apiKey, supportsStructuredOutputs: true })(MODEL),
  'openai chat': openai.chat(MODEL),
  'openai responses': openai.responses(MODEL),
  anthropic: createAnthropic({ baseURL, apiKey })(MODEL),
}
const schema = z.object({
  name: z.string().max(24), born: z.number().int().min(0).max(2100), role: z.enum(['writer', 'ruler', 'other']),
  tags: z.array(z.enum(['mathematics', 'poetry', 'war'])).max(2), home: z.object({ city: z.string().max(16) }).nullable(),
})
const tools = { person: tool({ description: 'Fills in the form.', inputSchema: schema, strict: true }) }
const output = Output.object({ schema })

async function parts(stream, last) {
  let n = 0
  for await (const _ of stream) n++
  if (n === 0) throw new Error('no parts')
  return last
}
const called = r => r.toolCalls[0].input
const modes = {
  generateObject: async a => (await generateObject({ ...a, schema })).object,
  streamObject: async a => { const r = streamObject({ ...a, schema, onError() {} }); return parts(r.partialObjectStream, r.object) },
  'generateText, output': async a => (await generateText({ ...a, output })).output,
  'streamText, output': async a => { const r = streamText({ ...a, output, onError() {} }); return parts(r.partialOutputStream, r.output) },
  'tool required': async a => called(await generateText({ ...a, tools, toolChoice: 'required' })),
  'tool named': async a => called(await generateText({ ...a, tools, toolChoice: { type: 'tool', toolName: 'person' } })),
}
for (const [name, model] of Object.entries(models)) {
  for (const [mode, ask] of Object.entries(modes)) {
    const title = name + ', ' + mode
    try {
      const object = await ask({
        model, prompt: 'Ada Lovelace was born in London in 1815. She wrote about mathematics and poetry. Fill in the form.', maxRetries: 0,
        maxOutputTokens: 300, providerOptions: { openai: { store: false } },
      })
      console.log(title + ':', JSON.stringify(schema.parse(object)))
    } catch (e) {
      console.log(title + ':', String(e), e.responseBody ?? '', String(e.cause ?? ''), e.text ?? '')
      failed.push(title)
    }
  }
}
if (failed.length) { console.error('failed: ' + failed.join(', ')); process.exit(1) }
